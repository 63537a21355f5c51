/** Documents in the console: dropping them in, preparing, asking, querying; and that nothing in them runs. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestTenant } from "../support/server.ts";
import { until } from "../support/until.ts";
import { type ConsoleRig, chromiumPath, type Look, memberScopes, openRig, themes } from "./rig.ts";

setDefaultTimeout(60_000);

/** Names and texts that would do something if anything of them were read as markup. */
const hostile = {
  names: ["<img src=x onerror=window.ran=1>.md", "a\u202egpj.md", '"><svg onload=window.ran=1>.md'],
  text: [
    "The extension of Eve Moss is <img src=x onerror=window.ran=1> 4711.",
    "[Click](javascript:window.ran=1) ![x](https://evil.example/a.png) <svg onload=window.ran=1></svg>",
  ].join("\n"),
};

describe.skipIf(chromiumPath === undefined)("documents in the console", () => {
  let rig: ConsoleRig;
  let tenant: TestTenant;
  let folder: string;
  beforeAll(async () => {
    rig = await openRig();
    tenant = await rig.server.tenant("Reader");
    folder = mkdtempSync(join(tmpdir(), "spangate-documents-"));
    mkdirSync(join(folder, "staff", "fairhaven"), { recursive: true });
    writeFileSync(
      join(folder, "staff", "people.md"),
      "- Mara Ellison works as a cartographer.\n- Tomas Reed works as a baker.\n",
    );
    const jon = "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057.\n";
    writeFileSync(join(folder, "staff", "fairhaven", "jon.md"), jon);
    writeFileSync(join(folder, "staff", "broken.pdf"), "this is no PDF");
  });
  afterAll(async () => {
    await rig?.[Symbol.asyncDispose]();
    rmSync(folder, { recursive: true, force: true });
  });

  const newCorpus = async ({ page, go }: Look, name: string): Promise<void> => {
    await go("#/corpora");
    await page.getByRole("button", { name: "New corpus" }).click();
    await page.getByLabel("Name").fill(name);
    await page.getByRole("button", { name: "Make it" }).click();
    await page.getByRole("heading", { name, level: 1 }).waitFor();
  };
  const fileRow = ({ page }: Look, name: string) => page.getByRole("row", { name });

  test.each(themes)("a folder is dropped in, read, prepared and asked, %s", async (theme) => {
    await using look = await rig.signIn(tenant.apiKey, theme);
    const { page } = look;
    await newCorpus(look, `handbook ${theme}`);
    await look.check("corpus-empty");
    // What a browser hands over when a file is dropped; folders can be dropped by hand alone, and are chosen below.
    await page.evaluate(`{
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File(["Una Croft works as a miller."], "dropped.md", { type: "text/markdown" }));
      const zone = document.querySelector(".drop-zone");
      for (const type of ["dragover", "drop"]) zone.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
    }`);
    await fileRow(look, "dropped.md").getByText("ready").waitFor();
    await page.locator("input[aria-label=Folder]").setInputFiles(join(folder, "staff"));
    await fileRow(look, "jon.md").getByText("ready").waitFor();
    await fileRow(look, "people.md").getByText("ready").waitFor();
    // What could not be read says why, and can be tried again.
    await fileRow(look, "broken.pdf").getByText("failed", { exact: true }).waitFor();
    await fileRow(look, "broken.pdf").getByRole("button", { name: "Retry" }).click();
    await page.getByText("It is read again.").waitFor();
    await fileRow(look, "broken.pdf").getByText("failed", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Prepare all" }).click();
    await page.getByText("100 % prepared").waitFor();
    await fileRow(look, "jon.md").getByRole("link").click();
    await page.getByRole("heading", { name: "Fragments of the file" }).waitFor();
    await look.check("corpus");

    await page.getByRole("link", { name: "Ask it" }).click();
    await page.getByLabel("Question").fill("What is the extension of Jon Vale?");
    await page.keyboard.press("Control+Enter");
    const source = page.getByRole("list", { name: "Sources" }).getByRole("listitem").first();
    await source.getByText("The extension of Jon Vale is 3057.").waitFor();
    expect(await source.textContent()).toContain("jon.md");
    await page.getByRole("button", { name: "Source 1" }).click();
    expect(await page.evaluate("document.activeElement.textContent")).toContain("[1]");
    await page.getByText("found in the pool").first().waitFor();
    await look.check("ask");
    expect(look.problems).toEqual([]);
  });

  test("a query is explained while it is typed, its fault has a line, and it runs", async () => {
    for (const theme of themes) {
      await using look = await rig.signIn(tenant.apiKey, theme);
      const { page } = look;
      await look.go("#/query");
      const drawing = page.getByRole("region", { name: "Tree of the query" });
      await drawing.getByText("fragment").first().waitFor();
      const field = page.getByLabel("YAML or JSON");
      const text = await field.inputValue();
      await field.fill(text.replace("temperature: 0", "temperature: warm"));
      const fault = page.locator("#query-fault");
      await fault.getByText("$.g.temperature").waitFor();
      await fault.getByRole("button", { name: "Show line 2" }).click();
      const chosen = "(({ value, selectionStart: a, selectionEnd: b }) => value.slice(a, b))(document.activeElement)";
      expect(await page.evaluate(chosen)).toBe("  temperature: warm");
      // The browser tells of the refusals in its console.
      expect(look.problems.splice(0).every((problem) => problem.includes("400"))).toBe(true);
      await look.check("query-fault");
      await field.fill(text);
      await page.getByRole("button", { name: "Run" }).click();
      await page.locator(".outcome").getByText("3057").first().waitFor();
      await page.getByText("Generates").waitFor();
      await look.check("query");
      expect(look.problems).toEqual([]);
    }
  });

  test("hostile names and texts are texts: nothing runs, nothing is loaded, nothing is reported", async () => {
    await using look = await rig.signIn(tenant.apiKey);
    const { page } = look;
    await newCorpus(look, "<script>window.ran=1</script>");
    const word = "x".repeat(1_000_000);
    const files = hostile.names.map((name, index) => {
      const text = index === 0 ? `${hostile.text}\n${word}` : hostile.text;
      return { name, mimeType: "text/markdown", buffer: Buffer.from(text) };
    });
    await page.locator("input[aria-label=Files]").setInputFiles(files);
    const ready = page.locator("tbody .badge.good");
    await until(async () => (await ready.count()) === 3, "all three files are read");
    // What cannot be seen in a name is shown by its number.
    expect(await page.locator("tbody").textContent()).toContain("U+202E");
    await look.check("hostile-corpus");
    await page.getByRole("link", { name: "Ask it" }).click();
    await page.getByLabel("Question").fill("What is the extension of Eve Moss?");
    await page.getByRole("button", { name: "Ask", exact: true }).click();
    await page.getByText("First token", { exact: true }).waitFor();
    await look.check("hostile-ask");
    expect(await page.evaluate("window.ran")).toBeUndefined();
    expect(look.problems).toEqual([]);
  });

  test("another tenant's corpus is one that does not exist", async () => {
    const other = await rig.server.tenant("Other");
    const own = await tenant.client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "secret handbook" });
    await using look = await rig.signIn((await rig.key(other.id, memberScopes)).key);
    const said: (string | null)[] = [];
    for (const id of [own.id, own.id.replace(/.{6}$/, "000000")]) {
      await look.page.evaluate(`location.hash = "#/corpora/${id}"`);
      await look.page.getByText("No such object.").waitFor();
      said.push((await look.page.locator("main").textContent())?.replaceAll(id, "ID") ?? null);
    }
    expect(said[0]).toBe(said[1] ?? "");
    expect(said[0]).not.toContain("secret handbook");
  });
});
