/** Administration in the console: what is changed there holds for every client, and what others named runs nothing. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { HttpClient } from "../../gateway/cli/support/client.ts";
import { type ConsoleRig, chromiumPath, type Look, openRig, tenantAdminScopes } from "./rig.ts";

setDefaultTimeout(60_000);

/** It would run if it were read as markup, and turn the text around it if it stood among it. */
const hostile = `<img src=x onerror="window.ran=1">\u202e"'><svg onload=window.ran=1>`;

describe.skipIf(chromiumPath === undefined)("administration in the console", () => {
  let rig: ConsoleRig;
  const tenants = { first: "", other: "" };
  const keys = { first: "", other: "" };
  beforeAll(async () => {
    rig = await openRig({ model: "one-layer" });
    for (const name of ["first", "other"] as const) {
      tenants[name] = (await rig.server.tenant(name)).id;
      keys[name] = (await rig.key(tenants[name], tenantAdminScopes)).key;
    }
  });
  afterAll(async () => await rig?.[Symbol.asyncDispose]());

  const statusOf = async (key: string): Promise<number> => {
    const { status } = await fetch(`${rig.server.url}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
    return status;
  };
  const press = ({ page }: Look, name: string | RegExp) => page.getByRole("button", { name, exact: true }).click();

  test("a key is made, shown once and used; its revocation holds at once, and ends the session that it began", async () => {
    await using look = await rig.signIn(keys.first);
    const { page } = look;
    await look.go("#/keys");
    await press(look, "New key");
    await look.check("new-key");
    await page.getByLabel("Name").fill("of a test");
    await page.getByRole("checkbox", { name: /^tenant:admin/ }).check();
    // What this key may not give is not offered.
    expect(await page.getByRole("checkbox", { name: /^platform/ }).count()).toBe(0);
    await press(look, "Make");
    const key = (await page.getByRole("dialog", { name: "The new key" }).locator("code").textContent()) ?? "";
    await look.check("key-shown");
    expect(await statusOf(key)).toBe(200);
    await page.keyboard.press("Escape");
    await using own = await rig.signIn(key);
    await own.go("#/keys");
    await own.page.getByText("this session's").waitFor();

    await press(look, "Revoke of a test");
    await page.getByRole("dialog", { name: "Revoke a key" }).waitFor();
    await look.check("revoke-key");
    await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
    await page.getByText("revoked", { exact: false }).first().waitFor();
    expect(await statusOf(key)).toBe(401);
    await own.go("#/audit");
    await own.page.getByText("The console's session has ended").waitFor();
    expect(own.problems.splice(0)).toEqual(expect.arrayContaining([expect.stringContaining("401")]));
    expect(look.problems).toEqual([]);
  });

  test("another tenant's id in the address shows what a random one does", async () => {
    await using look = await rig.signIn(keys.first);
    const shown: string[] = [];
    for (const id of [tenants.other, `tenant_${"0".repeat(24)}`]) {
      for (const page of ["keys", "limits"]) {
        await look.go(`#/${page}/${id}`);
        await look.page.getByRole("alert").getByText("No such object.").waitFor();
        shown.push(((await look.page.locator("main").textContent()) ?? "").replaceAll(id, "ID"));
      }
      await look.go(`#/usage/${id}`);
      await look.page.getByText("Nothing was asked on these days.").waitFor();
      shown.push(((await look.page.locator("main").textContent()) ?? "").replaceAll(id, "ID"));
    }
    expect(shown.slice(3)).toEqual(shown.slice(0, 3));
    expect(look.problems.filter((each) => !each.includes("404"))).toEqual([]);
  });

  test("a tenant is made, named with markup, given limits, disabled and deleted; what is refused stands beside its field", async () => {
    await using look = await rig.signIn(rig.server.adminKey);
    const { page } = look;
    await look.go("#/tenants");
    await press(look, "New tenant");
    await press(look, "Make");
    const dialog = page.getByRole("dialog");
    await dialog.locator(".field-error").waitFor();
    expect(await dialog.getByLabel("Name").getAttribute("aria-invalid")).toBe("true");
    expect(look.problems.splice(0)).toEqual([expect.stringContaining("400")]);
    await dialog.getByLabel("Name").fill(hostile);
    await press(look, "Make");
    const row = page.getByRole("row").filter({ hasText: "<img src=x" });
    await row.waitFor();
    expect(await row.locator("bdi").first().textContent()).toContain("U+202E");
    await look.check("hostile-tenant");
    const client = new HttpClient({ url: rig.server.url, apiKey: rig.server.adminKey });
    const { data } = await client.json<{ data: { id: string; name: string }[] }>("GET", "/admin/v1/tenants");
    const { id = "" } = data.find(({ name }) => name === hostile) ?? {};

    await look.go(`#/limits/${id}`);
    await page.getByLabel("Requests a minute").fill("many");
    await press(look, "Save");
    await page.locator(".field-error").waitFor();
    expect(await page.evaluate("document.activeElement.name")).toBe("requests_per_minute");
    expect(look.problems.splice(0)).toEqual([expect.stringContaining("400")]);
    await page.getByLabel("Requests a minute").fill("60");
    await page.getByLabel("KV on each worker").fill("2 GiB");
    await look.check("limits-filled");
    await press(look, "Save");
    await page.getByText("The limits hold from now on.").waitFor();
    const limits = await client.json("GET", `/admin/v1/tenants/${id}/limits`);
    expect(limits).toMatchObject({ requests_per_minute: 60, kv_bytes: 2 ** 31, concurrency: null });

    await look.go("#/tenants");
    await row.getByRole("button").click();
    await look.check("change-tenant");
    await dialog.getByLabel("State").selectOption("disabled");
    await press(look, "Save");
    await row.getByText("disabled").waitFor();
    await row.getByRole("button").click();
    await dialog.getByLabel("Its id, to delete it").fill("another");
    await press(look, "Delete the tenant");
    await dialog.getByText("That is not the tenant's id.").waitFor();
    await dialog.getByLabel("Its id, to delete it").fill(id);
    await press(look, "Delete the tenant");
    await row.waitFor({ state: "detached" });
    expect(await page.evaluate("window.ran")).toBeUndefined();
    expect(look.problems).toEqual([]);
  });

  test("usage names tenants, to an operator and to a tenant's administrator; a name is text", async () => {
    const name = "<img src=x onerror=window.ran=1> & sons";
    const { id } = await rig.server.admin.json<{ id: string }>("POST", "/admin/v1/tenants", { name });
    const scopes = ["tenant:admin"];
    const { key } = await rig.server.admin.json<{ key: string }>("POST", `/admin/v1/tenants/${id}/keys`, { scopes });
    const counts = { requests: 3, prompt_tokens: 9, cached_tokens: 5, cache_write_tokens: 0, completion_tokens: 2 };
    const day = { id: "a", object: "usage", day: "2026-01-31", ...counts, embedding_tokens: 0, computed_tokens: 6 };
    for (const signedIn of [rig.server.adminKey, key]) {
      await using look = await rig.signIn(signedIn);
      const { page } = look;
      await page.route("**/admin/v1/usage*", (answer) =>
        answer.fulfill({ json: { data: [{ ...day, tenant_id: id }], has_more: false } }),
      );
      await look.go("#/usage");
      const link = page
        .getByRole("region", { name: "Usage by day and tenant" })
        .getByRole("link", { name, exact: true });
      await link.waitFor();
      expect(await link.getAttribute("href")).toContain(id);
      expect([await page.evaluate("window.ran"), look.problems]).toEqual([undefined, []]);
    }
    await rig.server.admin.json("DELETE", `/admin/v1/tenants/${id}`);
  });

  test("usage is saved as a table that no spreadsheet runs", async () => {
    await using look = await rig.signIn(rig.server.adminKey);
    const { page } = look;
    const day = { object: "usage", day: "2026-01-31", requests: 3, prompt_tokens: 9, cached_tokens: 5 };
    const rest = { cache_write_tokens: 0, completion_tokens: 2, embedding_tokens: 0, computed_tokens: 6 };
    await page.route("**/admin/v1/usage*", (answer) =>
      answer.fulfill({ json: { data: [{ id: "a", tenant_id: "=HYPERLINK(1)", ...day, ...rest }], has_more: false } }),
    );
    await look.go("#/usage");
    await page.locator("canvas").waitFor();
    const download = page.waitForEvent("download");
    await press(look, "Save as CSV");
    const saved = await download;
    expect(saved.suggestedFilename()).toMatch(/^usage-\d{4}-\d\d-\d\d-\d{4}-\d\d-\d\d\.csv$/);
    const lines = Buffer.from(await Bun.file(await saved.path()).arrayBuffer())
      .toString("utf8")
      .split("\r\n");
    expect(lines).toEqual([
      "\ufeffday,tenant_id,requests,prompt_tokens,cached_tokens,completion_tokens,embedding_tokens,computed_tokens",
      `2026-01-31,"'=HYPERLINK(1)",3,9,5,2,0,6`,
      "",
    ]);
    expect(look.problems).toEqual([]);
  });

  test("of 100,000 rows 60 at most are on the page, by mouse and by keyboard", async () => {
    await using look = await rig.signIn(keys.first);
    const { page } = look;
    const actor = { key_id: "key_1", tenant_id: null };
    const data = Array.from({ length: 100_000 }, (_, at) => {
      return { id: `a${at}`, at, request_id: `req_${at}`, actor, tenant_id: null, action: `row ${at}`, object_ids: {} };
    });
    await page.route("**/admin/v1/audit*", (answer) => answer.fulfill({ json: { data, has_more: false } }));
    await look.go("#/audit");
    await page.getByText("100,000 in all").waitFor();
    const table = page.getByRole("region", { name: "Audit log" });
    const rowCount = () => page.locator(".table tbody tr:not(.spacer)").count();
    expect(await page.getByRole("table").getAttribute("aria-rowcount")).toBe("100001");
    for (const part of [0.25, 0.5, 0.999]) {
      const row = Math.floor(100_000 * part);
      await page.evaluate(`document.querySelector(".table").scrollTop = ${row * 32}`);
      await page.getByText(`row ${row}`, { exact: true }).waitFor();
      expect(await rowCount()).toBeLessThanOrEqual(60);
    }
    await table.focus();
    await page.keyboard.press("Home");
    await page.getByText("row 0", { exact: true }).waitFor();
    await page.keyboard.press("End");
    await page.getByText("row 99999", { exact: true }).waitFor();
    expect(await page.locator("tr[aria-rowindex='100001']").textContent()).toContain("row 99999");
    expect(await rowCount()).toBeLessThanOrEqual(60);
    expect(look.problems).toEqual([]);
  });
});
