/** The console in a real browser: every page, as each role, light and dark. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { type ConsoleRig, chromiumPath, memberScopes, openRig, tenantAdminScopes, themes } from "./rig.ts";

setDefaultTimeout(60_000);

const roleNames = ["member", "tenant admin", "operator"] as const;
const pagesOf: Readonly<Record<(typeof roleNames)[number], readonly string[]>> = {
  member: ["#/ask", "#/corpora", "#/query"],
  "tenant admin": ["#/keys", "#/limits", "#/usage", "#/audit"],
  operator: ["#/tenants", "#/keys", "#/limits", "#/usage", "#/audit", "#/workers"],
};

describe.skipIf(chromiumPath === undefined)("the console", () => {
  let rig: ConsoleRig;
  let tenantId: string;
  const keys = { operator: "", "tenant admin": "", member: "" };
  beforeAll(async () => {
    rig = await openRig({ model: "one-layer" });
    const tenant = await rig.server.tenant("Ærø & Søn");
    tenantId = tenant.id;
    await tenant.client.json("POST", "/v1/chat/completions", {
      ...{ model: rig.server.model, max_tokens: 4, messages: [{ role: "user", content: "What is where?" }] },
      documents: [{ text: "The box is in the hall." }],
    });
    keys.operator = rig.server.adminKey;
    keys["tenant admin"] = (await rig.key(tenant.id, tenantAdminScopes)).key;
    keys.member = (await rig.key(tenant.id, memberScopes)).key;
  });
  afterAll(async () => await rig?.[Symbol.asyncDispose]());

  const linksOf = async (look: Awaited<ReturnType<ConsoleRig["visit"]>>): Promise<readonly string[]> =>
    await look.page
      .locator("nav a[href^='#/']")
      .evaluateAll((links) => links.map((link) => link.getAttribute("href") ?? ""));

  /** Pages that were looked at as another role, by theme: their parts are the same. */
  const checked = new Set<string>();
  test.each(themes.flatMap((theme) => roleNames.map((role) => [role, theme] as const)))(
    "every page as %s, %s: nothing that the guidelines forbid, no error, no other host",
    async (role, theme) => {
      await using look = await rig.signIn(keys[role], theme);
      const links = await linksOf(look);
      expect(links).toEqual(expect.arrayContaining([...pagesOf[role]]));
      for (const link of links) {
        await look.go(link);
        if (!checked.has(`${theme} ${link}`)) await look.check(`${role.replace(" ", "-")}-${link.slice(2)}`);
        checked.add(`${theme} ${link}`);
      }
      expect(look.problems).toEqual([]);
    },
  );

  test("nobody is signed in: a form, by keyboard alone; a wrong key is told beside its field", async () => {
    await using look = await rig.visit();
    await look.page.getByLabel("API key").waitFor();
    await look.check("sign-in");
    expect(look.problems).toEqual([]);
    await look.page.keyboard.type("sk-wrong");
    await look.page.keyboard.press("Enter");
    await look.page.getByText("The API key is not valid.").waitFor();
    expect(await look.page.evaluate("document.activeElement.name")).toBe("api_key");
    expect(await look.page.getByLabel("API key").getAttribute("aria-invalid")).toBe("true");
    // What the browser says of the answer's status.
    expect(look.problems.splice(0)).toEqual([expect.stringContaining("401")]);
    await look.check("sign-in-refused");
    await look.page.keyboard.press("Control+A");
    await look.page.keyboard.type(keys.member);
    await look.page.keyboard.press("Enter");
    await look.page.getByRole("navigation", { name: "Pages" }).waitFor();
    expect(look.problems).toEqual([]);
  });

  test("a session outlives a reload, and ends by signing out; its cookie is out of reach for scripts", async () => {
    await using look = await rig.signIn(keys["tenant admin"]);
    expect(await look.page.evaluate("document.cookie")).toBe("");
    await look.page.reload();
    await look.page.getByRole("banner").getByText("Ærø & Søn").waitFor();
    await look.page.getByRole("button", { name: "Sign out" }).click();
    await look.page.getByLabel("API key").waitFor();
    await look.page.reload();
    await look.page.getByLabel("API key").waitFor();
    expect(look.problems).toEqual([]);
  });

  test("a key that is revoked ends its sessions with their next request", async () => {
    const { id, key } = await rig.key(tenantId, tenantAdminScopes);
    await using look = await rig.signIn(key);
    await rig.server.admin.json("DELETE", `/admin/v1/keys/${id}`);
    await look.go("#/audit");
    await look.page.getByText("The console's session has ended").waitFor();
    // What the browser says of the answers' status.
    expect(look.problems.filter((each) => !each.includes("401"))).toEqual([]);
    expect(look.problems).not.toEqual([]);
  });

  test("keys: ? lists them, g and a letter go to a page, Esc gives the focus back", async () => {
    await using look = await rig.signIn(keys.operator);
    await look.page.keyboard.press("?");
    await look.page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
    await look.check("keys");
    await look.page.keyboard.press("Escape");
    await look.page.getByRole("dialog").waitFor({ state: "detached" });
    await look.page.keyboard.press("g");
    await look.page.keyboard.press("l");
    // The focus follows the heading: a page is drawn before it has it.
    await look.page.locator("h1:focus", { hasText: "Audit log" }).waitFor();
    expect(look.problems).toEqual([]);
  });
});
