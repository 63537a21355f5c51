/** Documents that are made to break whoever reads them, taken in by the whole server. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { docxOf, paragraph } from "../extract/documents.ts";
import { bytesOf, catalog, page, pdfObjects } from "../extract/pdf-objects.ts";
import { type FuzzWorld, openWorld } from "../fuzz/world.ts";

setDefaultTimeout(120_000);

const mib = 1024 * 1024;

let world: FuzzWorld;
beforeAll(async () => {
  world = await openWorld();
});
afterAll(async () => await world[Symbol.asyncDispose]());

async function upload(name: string, bytes: Uint8Array): Promise<string> {
  const form = new FormData();
  form.set("file", new File([bytes as Uint8Array<ArrayBuffer>], name));
  form.set("purpose", "assistants");
  const answer = await world.call(world.caller.apiKey, "POST", "/v1/files", form);
  return ((await answer.json()) as { id: string }).id;
}

test("a server that takes bombs in says so at each file, and serves others meanwhile", async () => {
  const { apiKey } = world.caller;
  const bombs: readonly (readonly [name: string, bytes: Uint8Array, reason: RegExp])[] = [
    [
      "zeros.docx",
      await docxOf(paragraph("Words."), { "word/media/a.png": new Uint8Array(260 * mib) }),
      /unpacks to more than/,
    ],
    [
      "pages.pdf",
      pdfObjects({ 1: catalog, 2: `<< /Type /Pages /Kids [${"3 0 R ".repeat(6_000)}] /Count 6000 >>`, 3: page }),
      /more than 5000 pages|damaged/,
    ],
    ["deep.docx", await docxOf("<w:sdt><w:sdtContent>".repeat(100_000)), /cannot be read/],
    ["not.pdf", bytesOf("no PDF at all"), /is no PDF/],
  ];
  const good = [
    await upload("first.txt", bytesOf("Anna works for Tom.")),
    await upload("last.html", bytesOf("<p>Tom works for Eve.</p>")),
  ];
  const bad = await Promise.all(bombs.map(([name, bytes]) => upload(name, bytes)));
  const made = await world.call(apiKey, "POST", "/v1/vector_stores", { name: "bombs" });
  const { id: store } = (await made.json()) as { id: string };
  const files = [good[0], ...bad, good[1]];
  expect(
    (await world.call(apiKey, "POST", `/v1/vector_stores/${store}/file_batches`, { file_ids: files })).status,
  ).toBe(200);
  const stateOf = async (file: string) =>
    (await (await world.call(apiKey, "GET", `/v1/vector_stores/${store}/files/${file}`)).json()) as {
      status: string;
      last_error: { code: string; message: string } | null;
    };
  const states = async () => await Promise.all(files.map((file) => stateOf(file ?? "")));
  let served = 0;
  while ((await states()).some(({ status }) => status === "in_progress")) {
    expect((await world.call(undefined, "GET", "/ready")).status).toBe(200);
    served += 1;
    await Bun.sleep(20);
  }
  expect(served).toBeGreaterThan(0);
  for (const [index, [name, , reason]] of bombs.entries()) {
    const { status, last_error: error } = await stateOf(bad[index] ?? "");
    expect([name, status, error?.code, error?.message]).toEqual([
      name,
      "failed",
      "invalid_file",
      expect.stringMatching(reason),
    ]);
  }
  for (const file of good) expect(await stateOf(file)).toMatchObject({ status: "completed", last_error: null });
  expect(world.faults).toEqual([]);
});
