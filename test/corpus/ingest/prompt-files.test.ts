/** Files of prompts wait their turn: no tenant keeps another's from being read, and who leaves waits no more. */
import { describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { FileRow } from "../../../db/files.ts";
import { newId } from "../../../db/ids.ts";
import { corpusLimits } from "../../../gateway/corpus/base/limits.ts";
import { signatureBytes } from "../../../gateway/corpus/ingest/file-kinds.ts";
import { type PromptFile, PromptFiles } from "../../../gateway/corpus/ingest/prompt-files.ts";

const noUploads = {
  find: () => undefined,
  openPieces: () => Promise.reject(new Error("there are none")),
};
const never = new AbortController().signal;
const page = (text: string): PromptFile => {
  const base64 = Buffer.from(`<html><p>${text}</p></html>`).toString("base64");
  return { param: "file", source: { base64 }, filename: "a.html" };
};

test("a tenant's files wait for its own places and for no more than so many; another's is read meanwhile", async () => {
  const files = new PromptFiles(noUploads);
  const ended: string[] = [];
  const { promptReadersPerTenant, promptsWaitingPerTenant } = corpusLimits;
  const most = promptReadersPerTenant + promptsWaitingPerTenant;
  const many = Array.from({ length: most + 1 }, async (_, index) => {
    await files.read("tenant_a", [page(`page ${index}`)], never);
    ended.push("a");
  });
  const refused = many.pop();
  expect(await refused?.catch((error: unknown) => error)).toMatchObject({ code: "concurrency_limited" });
  const [other] = await files.read("tenant_b", [page("other")], never);
  expect(other).toEqual({ text: "other", pages: [], filename: "a.html" });
  // Those that were ahead of it, and those that became ready in the same moment.
  expect(ended.length).toBeLessThan(most / 2);
  await Promise.all(many);
  expect(ended).toHaveLength(most);
});

test("a text is remembered for its tenant alone", async () => {
  const path = join(mkdtempSync(join(tmpdir(), "spangate-test-")), "upload");
  const bytes = new TextEncoder().encode("<html><p>again</p></html>");
  writeFileSync(path, bytes);
  const opened: string[] = [];
  const row = { id: newId("file"), sha256: "0", byteCount: bytes.length, filename: "a.html", mediaType: "" } as FileRow;
  const files = new PromptFiles({
    find: () => row,
    openPieces: async (tenantId) => {
      opened.push(tenantId);
      const file = await open(path, "r");
      const read = (start: number, end: number) => bytes.subarray(start, end);
      return { byteLength: bytes.length, fd: file.fd, read, close: () => file.close() };
    },
  });
  for (const tenantId of ["tenant_a", "tenant_a", "tenant_b", "tenant_a"] as const) {
    const one = { param: "file", source: { fileId: row.id }, filename: undefined };
    expect(await files.read(tenantId, [one], never)).toMatchObject([{ text: "again" }]);
  }
  expect(opened).toEqual(["tenant_a", "tenant_b"]);
  rmSync(dirname(path), { recursive: true });
});

test("what waits no more gives its turn away", async () => {
  const files = new PromptFiles(noUploads);
  const client = new AbortController();
  const running = [1, 2].map((at) => files.read("tenant_a", [page(`running ${at}`)], never));
  const left = files.read("tenant_a", [page("left")], client.signal).catch((error: unknown) => error);
  const next = files.read("tenant_a", [page("next")], never);
  client.abort(new Error("the client has left"));
  expect(String(await left)).toContain("the client has left");
  await Promise.all([...running, next]);
});

test("one that takes too long, and more text than a request may have, are refused with the field's name", async () => {
  const slow = new PromptFiles(noUploads, 1).read("tenant_a", [page("a")], never);
  const message = expect.stringContaining("A vector store reads larger ones.");
  expect(await slow.catch((error: unknown) => error)).toMatchObject({ code: "invalid_value", param: "file", message });
  const text = {
    param: "many",
    source: { base64: Buffer.alloc(3_000_000, "a ").toString("base64") },
    filename: "a.txt",
  };
  const many = new PromptFiles(noUploads).read("tenant_a", [text, text, text], never);
  expect(await many.catch((error: unknown) => error)).toMatchObject({ param: "many", code: "invalid_value" });
});

/** An upload of so many bytes, which says what is read of it. */
async function askedOf(filename: string, bytes: Uint8Array, byteLength = bytes.byteLength) {
  const path = join(mkdtempSync(join(tmpdir(), "spangate-test-")), "upload");
  writeFileSync(path, bytes);
  const file = await open(path, "r");
  const asked: number[] = [];
  let closed = 0;
  const row = { id: newId("file"), sha256: "0", byteCount: byteLength, filename, mediaType: "" } as FileRow;
  const files = new PromptFiles({
    find: () => row,
    openPieces: async () => ({
      ...{ byteLength, fd: file.fd },
      read: (start, end) => {
        asked.push(end - start);
        return bytes.subarray(start, end);
      },
      close: async () => {
        closed += 1;
        await file.close();
      },
    }),
  });
  const outcome = await files
    .read("tenant_a", [{ param: "file", source: { fileId: row.id }, filename: undefined }], never)
    .catch((error: unknown) => error);
  rmSync(dirname(path), { recursive: true });
  expect(closed).toBe(1);
  return { outcome, asked };
}

describe("of an upload", () => {
  const pieceBytes = 64 * 1024 + 1;

  test("a text is read in pieces, never whole", async () => {
    const text = "Größe ü ß. ".repeat(20_000);
    const { outcome, asked } = await askedOf("a.txt", new TextEncoder().encode(text));
    expect(outcome).toEqual([expect.objectContaining({ text })]);
    expect(Math.max(...asked)).toBeLessThanOrEqual(pieceBytes);
  });

  test("no more than the signature is read of a text that is too long by its size", async () => {
    const { outcome, asked } = await askedOf("a.txt", new Uint8Array(2_000).fill(0x61), 30 * 2 ** 20);
    expect(outcome).toMatchObject({ code: "invalid_value", param: "file" });
    expect(asked).toEqual([signatureBytes]);
  });

  test("the process that reads documents gets the open file, and this one reads its signature alone", async () => {
    const bytes = new TextEncoder().encode(`<html><p>${"Tom has a yak. ".repeat(10_000)}</p></html>`);
    const { outcome, asked } = await askedOf("a.html", bytes);
    expect(outcome).toEqual([expect.objectContaining({ text: "Tom has a yak. ".repeat(10_000).trimEnd() })]);
    expect(asked).toEqual([signatureBytes]);
  });
});

describe("base64 of more than a piece", () => {
  const text = `${"A line of plain text, and one more. ".repeat(60_000)}é.`;
  const encoded = Buffer.from(text).toString("base64");
  const read = async (base64: string): Promise<string | undefined> => {
    const files = new PromptFiles(noUploads);
    const [file] = await files.read("tenant_a", [{ param: "file", source: { base64 }, filename: "a.txt" }], never);
    return file?.text;
  };

  test.each([
    ["as it is", encoded],
    ["a data URL", `data:text/plain;base64,${encoded}`],
    ["in lines", encoded.replace(/.{76}/g, "$&\r\n")],
  ])("%s is read whole", async (_, base64) => {
    expect(encoded.length).toBeGreaterThan(2 ** 21);
    expect((await read(base64)) === text).toBe(true);
  });

  test.each([
    ["padding within it", `${"QUFB".repeat(2 ** 18 - 1)}QQ==${"QUFB".repeat(9)}`],
    ["a character that is none", `${"QUFB".repeat(2 ** 19)}?${"QUFB".repeat(2 ** 19)}`],
    ["a piece of blanks alone", `${"QUFB".repeat(4)}${" ".repeat(2 ** 21)}QUFB`],
  ])("%s is refused by name", async (_, base64) => {
    await expect(read(base64)).rejects.toThrow("'file' must be base64, or a data URL of it.");
  });
});
