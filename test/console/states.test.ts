/** The console when something is asked of somebody, when there is nothing yet, and when something fails. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { TestTenant } from "../support/server.ts";
import { until } from "../support/until.ts";
import { type ConsoleRig, chromiumPath, type Look, openRig, tenantAdminScopes } from "./rig.ts";

setDefaultTimeout(60_000);

/** What has the focus, as somebody who hears the page is told. */
const focused = `(({ tagName, textContent, ariaLabel }) => ariaLabel || (tagName === "BODY" ? "nothing" : textContent.trim()))(document.activeElement)`;
const hasFocus = async ({ page }: Look, name: string): Promise<void> =>
  await until(async () => (await page.evaluate(focused)) === name, `${name} has the focus`);

describe.skipIf(chromiumPath === undefined)("the console's states", () => {
  let rig: ConsoleRig;
  let tenant: TestTenant;
  let adminKey = "";
  let corpusId = "";
  beforeAll(async () => {
    rig = await openRig({ model: "one-layer" });
    tenant = await rig.server.tenant("Acme");
    adminKey = (await rig.key(tenant.id, tenantAdminScopes)).key;
    const form = new FormData();
    form.set("purpose", "assistants");
    form.set("file", new File(["Jon Vale lives in Fairhaven."], "jon.md"));
    const headers = { authorization: `Bearer ${adminKey}` };
    const uploaded = await fetch(`${rig.server.url}/v1/files`, { method: "POST", headers, body: form });
    const { id } = (await uploaded.json()) as { id: string };
    const body = { name: "handbook", file_ids: [id] };
    corpusId = (await tenant.client.json<{ id: string }>("POST", "/v1/vector_stores", body)).id;
    const read = async () =>
      (await tenant.client.json<{ status: string }>("GET", `/v1/vector_stores/${corpusId}`)).status;
    await until(async () => (await read()) === "completed", "the file is read");
    await tenant.client.json("POST", "/v1/chat/completions", {
      ...{ model: rig.server.model, max_tokens: 1 },
      messages: [{ role: "user", content: "Where does Jon Vale live, and who else does?" }],
    });
  });
  afterAll(async () => await rig?.[Symbol.asyncDispose]());

  /** What opens each dialog, what it is called, and whether another test looks at it. */
  type Opens = readonly [page: string, button: string | RegExp, dialog: string | RegExp, isLookedAt?: "elsewhere"];
  const dialogsOf = (): Readonly<Record<"operator" | "tenant admin", readonly Opens[]>> => ({
    operator: [
      ["#/tenants", "New tenant", "New tenant"],
      ["#/tenants", "Change Acme", "Change Acme", "elsewhere"],
      ["#/cache", "Evict the KV of Acme", "Evict the KV of Acme?", "elsewhere"],
      ["#/audit", /^Show /, "On record"],
    ],
    "tenant admin": [
      ["#/corpora", "New corpus", "New corpus"],
      [`#/corpora/${corpusId}`, "Take out jon.md", "Take this file out?"],
      [`#/corpora/${corpusId}`, "Delete", "Delete this corpus?"],
      ["#/keys", "New key", "New key", "elsewhere"],
      ["#/keys", "Shortcuts ?", "Keyboard shortcuts", "elsewhere"],
    ],
  });

  test("each dialog is opened and closed by keyboard, and the focus is where it was", async () => {
    for (const [role, dialogs] of Object.entries(dialogsOf())) {
      await using look = await rig.signIn(role === "operator" ? rig.server.adminKey : adminKey);
      for (const [page, button, name, isLookedAt] of dialogs) {
        await look.go(page);
        const open = look.page.getByRole("button", { name: button, exact: true }).first();
        await open.focus();
        const opened = (await look.page.evaluate(focused)) as string;
        await look.page.keyboard.press("Enter");
        const dialog = look.page.getByRole("dialog", { name });
        await dialog.waitFor();
        // Where the focus is, is within it: what is behind cannot be reached.
        await until(
          async () => Boolean(await look.page.evaluate("document.activeElement.closest('dialog') !== null")),
          `${name} has the focus`,
        );
        if (isLookedAt === undefined) await look.check(`dialog-${page.replaceAll(/\W+/g, "")}-${button}`);
        await look.page.keyboard.press("Escape");
        await dialog.waitFor({ state: "detached" });
        await hasFocus(look, opened);
      }
      expect(look.problems).toEqual([]);
    }
  });

  test("a dialog that is done gives the focus back, or to what there is when its opener is gone", async () => {
    await using look = await rig.signIn(adminKey);
    const { page } = look;
    await look.go("#/cache");
    const evict = "Evict the KV of your tenant";
    await page.getByRole("button", { name: evict }).click();
    await page.getByRole("button", { name: "Keep it" }).click();
    await hasFocus(look, evict);
    await look.go("#/keys");
    await page.getByRole("button", { name: "New key" }).click();
    await page.getByLabel("Name").fill("short-lived");
    await page.keyboard.press("Enter");
    const shown = page.getByRole("dialog", { name: "The new key" });
    await shown.waitFor();
    await page.keyboard.press("Escape");
    await shown.waitFor({ state: "detached" });
    await hasFocus(look, "New key");
    await page.getByRole("button", { name: "Revoke short-lived" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
    await page.getByText("revoked", { exact: false }).first().waitFor();
    // The row has no such button any more: the table, where the keys of arrows go on.
    await hasFocus(look, "API keys");
    expect(look.problems).toEqual([]);
  });

  test("where there is nothing yet each page says what to do, and leads there", async () => {
    const empty = await rig.server.tenant("Empty & Sons");
    await using look = await rig.signIn((await rig.key(empty.id, tenantAdminScopes)).key);
    const { page } = look;
    const main = page.locator("main");
    for (const [from, link, to] of [
      ["#/overview", "Ask something", "Ask"],
      ["#/ask", "make one and drop files into it", "Corpora"],
      ["#/cache", "Make one", "Corpora"],
    ] as const) {
      await look.go(from);
      await look.check(`empty-${from.slice(2)}`);
      await main.getByRole("link", { name: link }).click();
      await page.getByRole("heading", { name: to, level: 1 }).waitFor();
    }
    for (const [hash, says] of [
      ["#/corpora", "Make one with “New corpus”"],
      ["#/usage", "Nothing was asked on these days."],
    ] as const) {
      await look.go(hash);
      await main.getByText(says).waitFor();
      await look.check(`empty-${hash.slice(2)}`);
    }
    await look.go("#/corpora");
    await page.getByRole("button", { name: "New corpus" }).click();
    await page.getByLabel("Name").fill("first");
    await page.keyboard.press("Enter");
    await main.getByText("No files yet. Drop some above.").waitFor();
    await look.check("empty-corpus");
    expect(look.problems).toEqual([]);
  });

  test("an operator chooses a tenant by its name, and only then makes a key", async () => {
    await using look = await rig.signIn(rig.server.adminKey);
    const { page } = look;
    await look.go("#/keys");
    expect(await page.getByRole("button", { name: "New key" }).count()).toBe(0);
    await page.locator("main").getByRole("link", { name: "Acme" }).click();
    await page.getByRole("button", { name: "New key" }).waitFor();
    await page.getByRole("row", { name: "inference" }).first().waitFor();
    expect(look.problems).toEqual([]);
  });

  test("while the server is gone each page says so, and goes on when it is back", async () => {
    await using look = await rig.signIn(adminKey);
    const { page } = look;
    const links = await page
      .locator("nav a[href^='#/']")
      .evaluateAll((all) => all.map((link) => link.getAttribute("href") ?? ""));
    // What pages are made of is there already; it comes with the same server.
    for (const link of links) await look.go(link);
    for (const [index, link] of links.entries()) {
      await look.go(links[index - 1] ?? "#/audit");
      await page.route(/\/v1\//, (route) => route.abort("connectionrefused"));
      await look.go(link);
      await page.getByText("The server does not answer.").first().waitFor();
      if (["#/overview", "#/ask", "#/query", "#/keys"].includes(link)) await look.check(`gone-${link.slice(2)}`);
      await page.unroute(/\/v1\//);
      // It is not what somebody wrote that is wrong.
      expect(await page.locator("[aria-invalid=true]").count()).toBe(0);
      const notes = page.getByRole("button", { name: "Try again" });
      await until(async () => {
        if ((await notes.count()) > 0)
          await notes
            .first()
            .click({ timeout: 1_000 })
            .catch(() => undefined);
        return (await notes.count()) === 0;
      }, `${link} goes on`);
    }
    expect(look.problems.filter((each) => !each.includes("ERR_CONNECTION_REFUSED"))).toEqual([]);
  });

  test("what is asked before it is known of which corpus goes to the latest, once that is known", async () => {
    await using look = await rig.signIn(adminKey);
    const { page } = look;
    const held = Promise.withResolvers<void>();
    await page.route("**/v1/vector_stores*", async (route) => {
      await held.promise;
      await route.continue();
    });
    await page.evaluate(`location.hash = "#/ask"`);
    await page.getByLabel("Question").fill("Where does Jon Vale live?");
    const asked = page.waitForRequest("**/v1/chat/completions");
    await page.keyboard.press("Control+Enter");
    await page.locator("button[aria-disabled=true]", { hasText: "Ask" }).waitFor();
    held.resolve();
    expect((await asked).postDataJSON()).toMatchObject({ file_search: { vector_store_ids: [corpusId] } });
    // This model would not end by itself.
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByText("Stopped.").waitFor();
    // Whoever wants the model alone says so.
    await page.getByLabel("Corpus").selectOption("none: the model alone");
    const alone = page.waitForRequest("**/v1/chat/completions");
    await page.getByLabel("Question").fill("Hello?");
    await page.keyboard.press("Control+Enter");
    expect((await alone).postDataJSON()).not.toHaveProperty("file_search");
    await page.getByRole("button", { name: "Stop" }).click();
    expect(look.problems).toEqual([]);
  });

  test("refusals, waiting, and a sign-in without a server are told in both themes", async () => {
    await using look = await rig.signIn(adminKey);
    const { page } = look;
    const refused = { error: { message: "This key may not do that.", type: "permission_error", code: "forbidden" } };
    await page.route("**/admin/v1/usage*", (route) => route.fulfill({ status: 403, json: refused }));
    await look.go("#/usage");
    await page.getByRole("alert").getByText("This key may not do that.").waitFor();
    await look.check("refused");
    await page.unroute("**/admin/v1/usage*");
    await look.go(`#/corpora/${corpusId.replace(/.{6}$/, "000000")}`);
    await page.getByRole("alert").getByText("No such object.").waitFor();
    await look.check("not-found");
    await look.go("#/nowhere");
    await page.getByRole("heading", { name: "No such page" }).waitFor();
    await look.check("no-page");
    const held = Promise.withResolvers<void>();
    await page.route("**/admin/v1/audit*", async (route) => {
      await held.promise;
      await route.continue();
    });
    await page.evaluate(`location.hash = "#/audit"`);
    await page.getByText("Loading …").waitFor();
    await look.check("waiting");
    held.resolve();
    await page
      .getByRole("button", { name: /^Show / })
      .first()
      .waitFor();
    expect(look.problems.filter((each) => !/40[34]/.test(each))).toEqual([]);

    await using nobody = await rig.visit();
    await nobody.page.getByLabel("API key").fill(adminKey);
    await nobody.page.route("**/admin/v1/session", (route) => route.abort("connectionrefused"));
    await nobody.page.getByRole("button", { name: "Sign in" }).click();
    await nobody.page.getByText("The server does not answer.").waitFor();
    await nobody.check("sign-in-gone");
    expect(nobody.problems.filter((each) => !each.includes("ERR_CONNECTION_REFUSED"))).toEqual([]);
  });
});
