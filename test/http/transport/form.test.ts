/** Multipart forms, whose file goes to the disk as it comes. */
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Context } from "hono";
import { z } from "zod";
import { newId } from "../../../db/ids.ts";
import { ContentStore } from "../../../gateway/corpus/files/content-store.ts";
import type { AppEnv } from "../../../gateway/http/transport/context.ts";
import { formFile, readForm } from "../../../gateway/http/transport/form.ts";
import { wholeFile } from "../../support/whole-file.ts";

let dir: string;
let store: ContentStore;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "spangate-form-"));
  store = new ContentStore(dir, "file");
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const schema = z.strictObject({ file: formFile<"file">(), purpose: z.enum(["a"]) });
const type = "multipart/form-data; boundary=b";
const part = (head: string, content: string) => `--b\r\ncontent-disposition: form-data; ${head}\r\n\r\n${content}\r\n`;
const file = (name: string, content: string) => part(`name="${name}"; filename="x.txt"`, content);
const field = (name: string, content: string) => part(`name="${name}"`, content);

type Body = ConstructorParameters<typeof Response>[0];
function read(body: Body, { contentType = type, stage = () => store.stage(newId("file")) } = {}) {
  const raw = new Request("http://localhost/", { method: "POST", headers: { "content-type": contentType }, body });
  const context = { req: { raw, header: (name: string) => raw.headers.get(name) ?? undefined } };
  const options = { maxBytes: 40_000_000, fileField: "file", stage };
  return readForm(context as unknown as Context<AppEnv>, schema, options);
}

test.each([
  ["before", field("purpose", "a") + file("file", "text")],
  ["after", file("file", "text") + field("purpose", "a")],
])("a file with its field %s it", async (_name, form) => {
  const read1 = await read(`${form}--b--`);
  expect(read1).toMatchObject({ purpose: "a", file: { name: "x.txt" } });
  await read1.file.content.keep();
  expect((await wholeFile(store.openPieces(read1.file.content.id))).toString()).toBe("text");
  expect(readdirSync(dir)).toEqual([read1.file.content.id]);
});

test("a client's own form, its names with letters and quotes", async () => {
  const form = new FormData();
  form.set("purpose", "a");
  form.set("file", new File(["ä"], "ü/x.md", { type: "text/markdown" }));
  const made = new Response(form);
  const contentType = made.headers.get("content-type") ?? "";
  const found = await read(await made.arrayBuffer(), { contentType });
  expect(found.file).toMatchObject({ name: "ü/x.md", type: "text/markdown" });
  expect(found.file.content.byteLength).toBe(2);
  await found.file.content.drop();
});

test.each<[string, string, { code: string; param?: string }]>([
  ["ends within its file", file("file", "text"), { code: "invalid_request" }],
  ["ends within a field", field("purpose", "a"), { code: "invalid_request" }],
  ["is empty", "", { code: "invalid_request" }],
  ["is none", "text", { code: "invalid_request" }],
  ["has a field twice", `${field("purpose", "a").repeat(2)}--b--`, { code: "invalid_value", param: "purpose" }],
  ["has two files", `${file("file", "1")}${file("file", "2")}--b--`, { code: "invalid_value", param: "file" }],
  [
    "has text for a file",
    `${field("file", "x")}${field("purpose", "a")}--b--`,
    { code: "invalid_value", param: "file" },
  ],
  [
    "has a file for text",
    `${file("purpose", "x")}${file("file", "x")}--b--`,
    { code: "invalid_value", param: "purpose" },
  ],
  [
    "is wrong after its file",
    `${file("file", "x")}${field("purpose", "b")}--b--`,
    { code: "invalid_value", param: "purpose" },
  ],
  [
    "has very many fields",
    `${Array.from({ length: 50_000 }, (_, i) => field(`k${i}`, "v")).join("")}--b--`,
    { code: "invalid_request" },
  ],
])("a form that %s is refused, and nothing of it stays", async (_name, form, error) => {
  await expect(read(form)).rejects.toMatchObject(error);
  expect(readdirSync(dir)).toEqual([]);
});

test("no more of a file is read than the disk takes", async () => {
  const pieceBytes = 64 * 1024;
  const pieces = 500;
  let given = 0;
  const encoder = new TextEncoder();
  const body = new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        given += 1;
        if (given === 1) controller.enqueue(encoder.encode(field("purpose", "a") + file("file", "").slice(0, -2)));
        else if (given <= pieces) controller.enqueue(new Uint8Array(pieceBytes).fill(97));
        else {
          controller.enqueue(encoder.encode("\r\n--b--"));
          controller.close();
        }
      },
    },
    { highWaterMark: 0 },
  );
  const writable = Promise.withResolvers<void>();
  const stage = async () => {
    const staged = await store.stage(newId("file"));
    const add = staged.add.bind(staged);
    staged.add = async (bytes) => {
      await writable.promise;
      await add(bytes);
    };
    return staged;
  };
  const reading = read(body, { stage });
  for (let turn = 0; turn < 200; turn++) await new Promise((resolve) => setImmediate(resolve));
  // A piece on its way, one that waits, and the half MiB that a stream holds.
  expect(given).toBeLessThan(13);
  writable.resolve();
  const { file: found } = await reading;
  expect(found.content.byteLength).toBe((pieces - 1) * pieceBytes);
  await found.content.drop();
});

test.each([1, 1_000, 100_000, 400_000, 800_000])(
  "a part that is left out, and the form's end, in a last piece of %d bytes more",
  async (lastBytes) => {
    const content = "y".repeat(1_000_000);
    const form = `${file("file", content).replace("x.txt", "x\n.txt")}${field("purpose", "a")}--b--`;
    const bytes = new TextEncoder().encode(form);
    const cut = bytes.byteLength - 150 - lastBytes;
    const pieces = [bytes.subarray(0, 64_000), bytes.subarray(64_000, cut), bytes.subarray(cut)];
    const body = new ReadableStream({
      async pull(controller) {
        // Each piece comes in a turn of its own.
        await Bun.sleep(1);
        const piece = pieces.shift();
        if (piece === undefined) controller.close();
        else controller.enqueue(piece);
      },
    });
    await expect(read(body)).rejects.toMatchObject({ param: "file" });
  },
);
