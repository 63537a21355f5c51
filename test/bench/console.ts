/**
 * The console in Chromium on this machine: how much a first visit loads, how long until one can type into it, whether a
 * table of 100,000 rows holds the page up while it is scrolled, and how long until an eviction is on the page. Each visit
 * has an empty cache.
 */
import { CommandError } from "../../gateway/cli/support/command.ts";
import { type ConsoleRig, chromiumPath, type Look, openRig, tenantAdminScopes } from "../console/rig.ts";
import { atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { median } from "./support/stats.ts";

const [defaultRounds, rows, rowPixels, steps] = [7, 100_000, 32, 400];
/** Promised in docs/console.md. */
const bounds = { firstLoadKib: 150, interactiveMs: 1_000, longestTaskMs: 50, rowsOnPage: 60, evictionMs: 2_000 };

/** Notes when the field that one signs in by is there, on the page's own clock, which begins with the visit. */
const noteInteractive = `new MutationObserver((_, observer) => {
  if (!document.querySelector("input[name=api_key]")) return;
  observer.disconnect();
  window.interactiveMs = performance.now();
}).observe(document, { childList: true, subtree: true });`;

const loadedBytes = `[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .reduce((sum, { encodedBodySize }) => sum + encodedBodySize, 0)`;

interface Visit {
  readonly interactiveMs: number;
  readonly bytes: number;
}

async function visit({ page }: Look, url: string): Promise<Visit> {
  await page.addInitScript(noteInteractive);
  await page.goto(url);
  await page.getByLabel("API key").waitFor();
  return { interactiveMs: await page.evaluate("window.interactiveMs"), bytes: await page.evaluate(loadedBytes) };
}

/** Scrolls from the first row to the last in steps, a frame each. @returns the longest task in milliseconds, 0 for none over 50 */
const scroll = `new Promise((resolve) => {
  const box = document.querySelector(".table");
  let longest = 0;
  let most = 0;
  const observer = new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) longest = Math.max(longest, duration);
  });
  observer.observe({ type: "longtask" });
  let step = 0;
  const next = () => {
    box.scrollTop = (++step / ${steps}) * ${rows * rowPixels};
    most = Math.max(most, document.querySelectorAll(".table tbody tr:not(.spacer)").length);
    if (step < ${steps}) requestAnimationFrame(next);
    // The observer is told of a task after it has ended.
    else setTimeout(() => resolve({ longestMs: longest, rowsOnPage: most }), 500);
  };
  requestAnimationFrame(next);
})`;

/** From an eviction by the API, as others make them, until it stands on a page that is open. @returns milliseconds, one each round */
async function evictions(rig: ConsoleRig, rounds: number): Promise<readonly number[]> {
  const tenant = await rig.server.tenant("evicted");
  const { key } = await rig.key(tenant.id, tenantAdminScopes);
  await using look = await rig.signIn(key);
  await look.go("#/cache");
  await look.page.getByText("live", { exact: true }).waitFor();
  const gone = look.page.getByText(/\d+ removed; 0 held/);
  const times: number[] = [];
  for (let round = 0; round < rounds; round++) {
    const messages = [{ role: "user", content: `Round ${round}. ${"What is where? ".repeat(20)}` }];
    await tenant.client.json("POST", "/v1/chat/completions", { model: rig.server.model, messages, max_tokens: 1 });
    await look.page.getByRole("row", { name: "worker-0, pool" }).waitFor();
    const startMs = performance.now();
    await rig.server.admin.json("DELETE", `/admin/v1/tenants/${tenant.id}/cache`);
    await gone.nth(round).waitFor();
    times.push(performance.now() - startMs);
    await look.page.getByRole("row", { name: "worker-0, pool" }).waitFor({ state: "detached" });
  }
  return times;
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const rounds = Number(option("rounds") ?? defaultRounds);
  if (!(rounds >= 1)) throw new CommandError("--rounds is 1 or more");
  if (chromiumPath === undefined) throw new CommandError("there is no Chromium on this machine");
  await using rig = await openRig({ model: "one-layer" });
  const visits: Visit[] = [];
  for (let round = 0; round < rounds; round++) {
    await using look = await rig.visit("/health");
    visits.push(await visit(look, rig.server.url));
    say(`visit ${round + 1}: ${Math.round(visits.at(-1)?.interactiveMs ?? 0)} ms`);
  }
  const actor = { key_id: "key_1", tenant_id: null };
  const data = Array.from({ length: rows }, (_, at) => {
    return { id: `a${at}`, at, request_id: `req_${at}`, actor, tenant_id: null, action: `row ${at}`, object_ids: {} };
  });
  await using look = await rig.signIn(rig.server.adminKey);
  await look.page.route("**/admin/v1/audit*", (answer) => answer.fulfill({ json: { data, has_more: false } }));
  await look.go("#/audit");
  await look.page.getByText("100,000 in all").waitFor();
  const scrolled = await look.page.evaluate<{ longestMs: number; rowsOnPage: number }>(scroll);
  const evictionMs = Math.max(...(await evictions(rig, rounds)));
  const interactiveMs = median(visits.map((each) => each.interactiveMs));
  const firstLoadKib = Math.max(...visits.map(({ bytes }) => bytes)) / 1_024;
  return {
    model: "none",
    header: ["what", "value"],
    rows: [
      ["a first visit loads, compressed", `${firstLoadKib.toFixed(1)} KiB`],
      [`until one can type, median of ${rounds} visits`, `${interactiveMs.toFixed(0)} ms`],
      ["longest task while 100,000 rows are scrolled", `${scrolled.longestMs.toFixed(0)} ms`],
      ["rows on the page, at most", String(scrolled.rowsOnPage)],
      [`until an eviction is on the page, longest of ${rounds}`, `${evictionMs.toFixed(0)} ms`],
    ],
    notes: [`scrolled in ${steps} steps, a frame each; tasks of up to 50 ms are not told by browsers and count as 0`],
    bars: [
      atMost("first load, KiB", firstLoadKib, bounds.firstLoadKib),
      atMost("until one can type, ms", interactiveMs, bounds.interactiveMs),
      atMost("longest task while scrolling, ms", scrolled.longestMs, bounds.longestTaskMs),
      atMost("rows on the page", scrolled.rowsOnPage, bounds.rowsOnPage),
      atMost("until an eviction is on the page, ms", evictionMs, bounds.evictionMs),
    ],
  };
}

export const consoleBench: Bench = {
  name: "console",
  summary:
    "The console in Chromium: what a first visit loads, until one can type, scrolling 100,000 rows, an eviction.",
  options: { rounds: `N  visits, ${defaultRounds} unless given` },
  run,
};
