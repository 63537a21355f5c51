/**
 * What somebody who has never seen the console finds out from it alone, by clicking what is written there: why the last
 * answer was slow, which document it rests on, how much of a corpus is prepared, whose KV fills the worker. A sign-in
 * counts as a click, and so does sending a question.
 */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { Locator } from "playwright-core";
import { type ConsoleRig, chromiumPath, type Look, openRig, tenantAdminScopes } from "./rig.ts";

setDefaultTimeout(60_000);
const mostClicks = 12;

describe.skipIf(chromiumPath === undefined)("a stranger", () => {
  let rig: ConsoleRig;
  let apiKey = "";
  beforeAll(async () => {
    rig = await openRig();
    const tenant = await rig.server.tenant("Acme");
    apiKey = (await rig.key(tenant.id, tenantAdminScopes)).key;
    const headers = { authorization: `Bearer ${tenant.apiKey}` };
    const uploads = [
      ["staff.md", "The extension of Jon Vale is 3057."],
      ["trades.md", "Mara Ellison works as a cartographer."],
    ].map(async ([name = "", text = ""]) => {
      const form = new FormData();
      form.set("purpose", "assistants");
      form.set("file", new File([text], name));
      const made = await fetch(`${rig.server.url}/v1/files`, { method: "POST", headers, body: form });
      return ((await made.json()) as { id: string }).id;
    });
    await tenant.client.json("POST", "/v1/vector_stores", { name: "handbook", file_ids: await Promise.all(uploads) });
  });
  afterAll(async () => await rig?.[Symbol.asyncDispose]());

  test(`finds four answers with at most ${mostClicks} clicks`, async () => {
    const clicks = { count: 0 };
    const click = async (target: Locator): Promise<void> => {
      clicks.count += 1;
      await target.click();
    };
    const link = ({ page }: Look, name: string) => page.getByRole("link", { name, exact: true });
    await using look = await rig.signIn(apiKey);
    clicks.count += 1;
    const { page } = look;
    const main = page.locator("main");

    // How much of the corpus is prepared?
    await click(link(look, "Corpora"));
    await click(link(look, "handbook"));
    await main.getByText("0 % prepared").waitFor();

    // Which document does an answer rest on?
    await click(link(look, "Ask it"));
    await page.getByLabel("Question").fill("What is the extension of Jon Vale?");
    await click(page.getByRole("button", { name: "Ask", exact: true }));
    const sources = page.getByRole("list", { name: "Sources" });
    await sources.getByText("staff.md").waitFor();

    // Why was it as slow as it was? A sentence says so, beside the picture and the fragments that were computed.
    await main
      .getByText(/computing the prompt|waiting|retrieval|the first token/i)
      .first()
      .waitFor();
    await main.getByText("computed", { exact: false }).first().waitFor();
    await click(link(look, "The whole request"));
    await page.getByRole("heading", { name: "Request", level: 1 }).waitFor();
    await look.check("stranger-request");

    // Whose KV fills the worker? Its own a tenant sees; everybody's, by tenant, who runs the server.
    await click(link(look, "Cache"));
    await page
      .getByRole("region", { name: "Where it lies" })
      .getByRole("row", { name: "worker-0, pool" })
      .first()
      .waitFor();
    await using operator = await rig.signIn(rig.server.adminKey);
    clicks.count += 1;
    await click(link(operator, "Cache"));
    await operator.page.locator("main").getByText("Acme").first().waitFor();
    await operator.check("stranger-cache");
    expect(clicks.count).toBeLessThanOrEqual(mostClicks);
    expect([...look.problems, ...operator.problems]).toEqual([]);
  });
});
