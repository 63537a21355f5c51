/**
 * A stranger's first hour, command by command: start, documents of ten formats with two that are broken, questions, an
 * edit, usage, a backup and its restore, and the end. What each command prints is read; none is tried twice.
 */
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { docxOf, paragraph } from "../extract/documents.ts";
import { pagedFormats } from "../extract/paged-documents.ts";
import { devSign, runSpangate, serveSpangate } from "../support/command-line.ts";

setDefaultTimeout(120_000);

const home = mkdtempSync(join(tmpdir(), "spangate hour "));
afterAll(() => rmSync(home, { recursive: true, force: true }));

const shell = { env: { PATH: process.env.PATH ?? "", HOME: home }, cwd: home };
const spangate = (...args: string[]) => runSpangate(args, shell);

const serve = async (...flags: string[]) => (await serveSpangate(["--dev", ...flags], devSign, shell)).stop;

const folder = join(home, "papers");
const write = (name: string, content: string | Uint8Array) => writeFileSync(join(folder, name), content);
const warranty =
  "# Warranty of the Brix kettle\n\nThe warranty runs for 30 months from the day on the receipt. It does not cover the lid.\n";

async function writePapers(): Promise<void> {
  mkdirSync(folder);
  write("warranty.md", warranty);
  write("walk.txt", "The walk around the lake takes three hours. Leave the car behind the church.");
  write("hall.html", "<nav>Home</nav><main><p>The swimming hall opens at seven in the morning.</p></main>");
  write("prices.csv", "item,price\napron,14 euros\noven glove,9 euros\n");
  write("server.yaml", "port: 9417\nregion: north\n");
  write("ship.json", JSON.stringify({ ship: "Lorna", captain: "Tove Brandt" }));
  write("tide.py", "# The tide turns every six hours.\nTURN_HOURS = 6\n");
  write(
    "minutes.docx",
    await docxOf(paragraph("The committee came together in the scout hut. Ines Aldea wrote the minutes.")),
  );
  const page = (name: string, ...sentences: string[]) => ({ name, sentences });
  const pages = [page("One", "The bridge was built in 1911."), page("Two", "Its architect was Amara Lind of Zurich.")];
  for (const format of ["pdf", "pptx"] as const)
    write(`bridge.${format}`, (await pagedFormats[format]?.make(pages)) ?? "");
  write("broken.pdf", "%PDF-1.7 and nothing more");
  write("photo.jpeg", new Uint8Array([0xff, 0xd8, 0xff, 0xe0, 1, 2, 3]));
}

test("a stranger's first hour", async () => {
  expect((await spangate("--version")).output).toMatch(/^\d+\.\d+\.\d+$/);
  await writePapers();
  let stop = await serve();

  const status = await spangate("status");
  expect([status.code, status.output.split("\n").at(-1)]).toEqual([0, "worker-0: ready"]);
  // A single page needs no store, whatever its format.
  const about = await spangate("ask", "-d", "papers/minutes.docx", "Who wrote the minutes?");
  expect([about.code, about.output]).toEqual([0, "Ines Aldea wrote the minutes."]);
  const unread = await spangate("ask", "-d", "papers/broken.pdf", "What does it say?");
  expect([unread.code, unread.errors]).toEqual([1, expect.stringContaining("papers/broken.pdf: ")]);

  const ingested = await spangate("ingest", "papers", "--new", "papers");
  expect(ingested.code).toBe(1);
  const store = /vs_\w+/.exec(ingested.output)?.[0] ?? "";
  expect(store).not.toBe("");
  const told = `${ingested.output}\n${ingested.errors}`;
  for (const broken of ["broken.pdf", "photo.jpeg"]) expect(told).toContain(broken);

  const asked = await spangate("ask", "-s", store, "How long does the warranty run?");
  expect([asked.code, asked.output]).toEqual([0, expect.stringContaining("30 months")]);
  expect(asked.errors).toContain("[warranty.md");

  write("warranty.md", warranty.replace("30 months", "45 months"));
  rmSync(join(folder, "broken.pdf"));
  rmSync(join(folder, "photo.jpeg"));
  const synced = await spangate("sync", "papers", "--store", store);
  expect([synced.code, synced.output]).toEqual([0, "0 added, 1 changed, 0 removed, 9 unchanged, 0 failed"]);
  const again = await spangate("ask", "-s", store, "How long does the warranty run?");
  expect([again.code, again.output]).toEqual([0, expect.stringContaining("45 months")]);

  const usage = await spangate("usage");
  expect(usage.code).toBe(0);
  const [header, , row] = usage.output.split("\n").map((line) => line.trim().split(/\s{2,}/));
  expect(header).toEqual(["day", "tenant", "requests", "prompt", "cached", "answers", "computed"]);
  expect(Number(row?.[2])).toBeGreaterThanOrEqual(3);
  expect((await spangate("usage", "--tenant", row?.[1] ?? "")).output).toBe(usage.output);
  expect((await spangate("usage", "--tenant", "tenant_of_nobody")).output).not.toContain(row?.[1] ?? "");

  const backup = await spangate("backup", "copy.backup");
  expect([backup.code, backup.output]).toEqual([0, expect.stringContaining("backed up .spangate to copy.backup")]);
  expect(await stop()).toBe(0);
  const restored = await spangate("restore", "copy.backup", "--data", "second");
  expect([restored.code, restored.output]).toEqual([0, expect.stringContaining("restored second from copy.backup")]);

  stop = await serve("--data", "second");
  const after = await spangate(
    "ask",
    "-s",
    store,
    "--api-key",
    keyIn("second"),
    "--url",
    urlIn("second"),
    "How long does the warranty run?",
  );
  expect([after.code, after.errors.includes("warranty.md"), after.output]).toEqual([
    0,
    true,
    expect.stringContaining("45 months"),
  ]);
  expect(await stop()).toBe(0);

  rmSync(join(home, "second"), { recursive: true });
  const gone = await spangate("status");
  expect([gone.code, gone.output]).toEqual([1, expect.stringContaining("no server answers")]);
});

/** What serve --dev leaves in its data folder for the command line. */
function accessIn(data: string): { readonly api_key: string; readonly url: string } {
  return JSON.parse(readFileSync(join(home, data, "dev-access.json"), "utf8"));
}
const keyIn = (data: string): string => accessIn(data).api_key;
const urlIn = (data: string): string => accessIn(data).url;
