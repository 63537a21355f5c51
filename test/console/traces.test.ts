/** The overview and the way of a request in a browser: why an answer was slow, for those who may know. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { TestTenant } from "../support/server.ts";
import { type ConsoleRig, chromiumPath, memberScopes, openRig, tenantAdminScopes, themes } from "./rig.ts";

setDefaultTimeout(60_000);

describe.skipIf(chromiumPath === undefined)("requests in the console", () => {
  let rig: ConsoleRig;
  let tenant: TestTenant;
  let adminKey: string;
  let memberKey: string;
  let other: TestTenant;
  beforeAll(async () => {
    rig = await openRig();
    tenant = await rig.server.tenant("Asker");
    other = await rig.server.tenant("Other");
    adminKey = (await rig.key(tenant.id, tenantAdminScopes)).key;
    memberKey = (await rig.key(tenant.id, memberScopes)).key;
  });
  afterAll(async () => await rig?.[Symbol.asyncDispose]());

  /** @returns the request's id */
  async function ask(apiKey: string, tokens: number): Promise<string> {
    const answer = await fetch(`${rig.server.url}/v1/chat/completions`, {
      method: "POST",
      headers: { authorization: `Bearer ${apiKey}`, "content-type": "application/json" },
      body: JSON.stringify({
        ...{ model: rig.server.model, max_tokens: tokens, min_tokens: tokens, ignore_eos: true },
        documents: [{ id: "<b>secret</b>", text: "Jon Vale lives in Fairhaven. ".repeat(20) }],
        messages: [{ role: "user", content: "Where does Jon Vale live?" }],
      }),
    });
    expect(answer.status).toBe(200);
    await answer.text();
    return answer.headers.get("x-request-id") ?? "";
  }

  test.each(themes)("from the overview to why the slowest answer was slow, %s", async (theme) => {
    const own = await rig.key((await rig.server.tenant(theme)).id, tenantAdminScopes);
    await ask(own.key, 2);
    // So many tokens that no wait for a worker, beside other tests, is longer than they take.
    const slow = await ask(own.key, 1_000);
    await using look = await rig.signIn(own.key, theme);
    const { page } = look;
    await look.go("#/overview");
    await page.getByText("tokens not computed again").waitFor();
    // What the charts show stands below them too.
    await page.getByText("Prompt tokens as a table").click();
    expect(await page.getByRole("region", { name: "Prompt tokens" }).locator("tbody tr").count()).toBeGreaterThan(0);
    await page.getByText("Prompt tokens as a table").click();
    const rows = page.getByRole("region", { name: "Slowest requests" }).locator("tbody tr");
    expect(await rows.first().textContent()).toContain("decode");
    await look.check("overview-asked");
    await rows.first().getByRole("link").click();
    await page.getByRole("heading", { name: "Request", level: 1 }).waitFor();
    await page.getByText("went into decode: generating the answer.").waitFor();
    expect(await page.locator("dl.details").textContent()).toContain(slow);
    const stages = page.locator(".waterfall tbody tr");
    expect(await stages.locator("th").allTextContents()).toEqual([
      "lowering",
      "queue",
      "prefill",
      "first token",
      "decode",
    ]);
    // Each bar begins behind the one before, and the last ends where the drawing does, but for the end of the answer.
    const bars = await stages
      .locator("rect")
      .evaluateAll((all) => all.map((bar) => ["x", "width"].map((name) => Number(bar.getAttribute(name)))));
    for (const [index, [x = 0]] of bars.entries()) {
      const [before = 0] = bars[index - 1] ?? [];
      expect(x).toBeGreaterThanOrEqual(before);
    }
    const [x = 0, width = 0] = bars.at(-1) ?? [];
    expect(x + width).toBeWithin(900, 1_001);
    await page.getByText("document 1 of the request").waitFor();
    expect(await page.locator("main").textContent()).not.toContain("secret");
    await look.check("trace");
    expect(look.problems).toEqual([]);
  });

  test("another's request is one that does not exist; a key sees its own, an operator all", async () => {
    const own = await ask(memberKey, 2);
    const others = await ask(adminKey, 2);
    const foreign = await ask(other.apiKey, 2);
    const said = async (key: string, id: string): Promise<string> => {
      await using look = await rig.signIn(key);
      await look.go(`#/overview/${id}`);
      const text = (await look.page.locator("main").textContent()) ?? "";
      expect(look.problems.every((problem) => problem.includes("404"))).toBe(true);
      return text.replaceAll(id, "ID");
    };
    const unknown = await said(memberKey, `req_${"0".repeat(32)}`);
    expect(unknown).toContain("No such object.");
    for (const id of [others, foreign]) expect(await said(memberKey, id)).toBe(unknown);
    expect(await said(adminKey, foreign)).toBe(unknown);
    for (const [key, id] of [
      [memberKey, own],
      [adminKey, own],
      [rig.server.adminKey, foreign],
    ] as const) {
      expect(await said(key, id)).toContain("went into");
    }
    await using look = await rig.signIn(memberKey);
    await look.go("#/overview");
    const rows = look.page.getByRole("region", { name: "Slowest requests" }).locator("tbody tr");
    expect(await rows.count()).toBe(1);
  });
});
