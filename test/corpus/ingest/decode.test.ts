import { expect, spyOn, test } from "bun:test";
import { ContentStore } from "../../../gateway/corpus/files/content-store.ts";
import { chunkText } from "../../../gateway/corpus/ingest/chunk.ts";
import { decodeText, type FileBytes, inMemory, Utf8Text } from "../../../gateway/corpus/ingest/decode.ts";
import { maxSentenceChars, type TextKind } from "../../../gateway/corpus/ingest/sentences.ts";
import { fc } from "../../support/fast-check.ts";
import { yieldsDuring } from "../../support/yields.ts";
import { countTokens } from "../fixtures.ts";
import { createWorld, ingestText } from "../world.ts";

const utf8 = new TextEncoder();
const bytesOf = (text: string): FileBytes => inMemory(utf8.encode(text));

test("a long text is decoded a part at a time, and others have their turn between", async () => {
  const text = "a\u{1f600}é".repeat(600_000);
  const { result, yields } = await yieldsDuring(() => decodeText(bytesOf(text)));
  expect(result === text).toBe(true);
  expect(yields).toBeGreaterThanOrEqual(16);
});

test("a mark of the byte order is no part of the text", async () => {
  expect(await decodeText(bytesOf("\ufeffSome text."))).toBe("Some text.");
});

test.each([
  ["half a character at the end", Uint8Array.of(0x61, 0xc3), "not valid UTF-8"],
  ["half a character far behind the start", new Uint8Array(600_000).fill(0x61).with(400_000, 0xff), "not valid UTF-8"],
  ["a NUL", Uint8Array.of(0x61, 0, 0x61), "NUL"],
  ["nothing but space", utf8.encode(" \n "), "no text"],
])("%s is refused", async (_, bytes, message) => {
  await expect(decodeText(inMemory(bytes))).rejects.toThrow(message);
});

/** Characters of one to four bytes, and ends of lines and sentences. */
const odd = fc
  .array(fc.constantFrom("a", "B", " ", ".", "\n", "\r\n", "é", "東", "\u{1f600}", "# ", "- "), { maxLength: 200 })
  .map((parts) => `x${parts.join("")}`);
const blockBytes = fc.integer({ min: 4, max: 40 });

test("bytes that are decoded block by block are the same text", async () => {
  const place = fc.nat({ max: 250 });
  await fc.assert(
    fc.asyncProperty(odd, blockBytes, place, place, async (whole, size, start, end) => {
      const text = await Utf8Text.open(bytesOf(whole), size);
      expect([text.length, text.byteLength]).toEqual([whole.length, Buffer.byteLength(whole)]);
      // Halves of pairs come as they stand in the string.
      expect(text.slice(start, end)).toBe(whole.slice(start, Math.max(start, end)));
      expect(text.indexOf("\n", start)).toBe(whole.indexOf("\n", start));
    }),
  );
});

test("a file that ends too soon is an error", async () => {
  const cut: FileBytes = { byteLength: 100, read: (start, end) => utf8.encode("a".repeat(50)).subarray(start, end) };
  await expect(Utf8Text.open(cut)).rejects.toThrow("could not be read to its end");
});

test("their fragments are the same too", async () => {
  const kinds = fc.constantFrom<TextKind>("plain", "markdown", "lines");
  await fc.assert(
    fc.asyncProperty(odd, blockBytes, kinds, async (whole, size, kind) => {
      const split = (text: string | Utf8Text) => [
        ...chunkText(text, kind, { maxTokens: 16, overlapTokens: 4 }, countTokens),
      ];
      expect(split(await Utf8Text.open(bytesOf(whole), size))).toEqual(split(whole));
    }),
  );
});

test("of a file that is ingested no more than a piece is in memory at a time, and it is closed", async () => {
  const world = createWorld();
  try {
    using slice = spyOn(Utf8Text.prototype, "slice");
    using open = spyOn(ContentStore.prototype, "openPieces");
    const tenantId = world.tenants.create("acme").id;
    const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
    const words = "Größe ü ß. ".repeat(20_000);
    await ingestText(world, store, "signs.txt", words, {}, 4_096);
    const count = world.db.client.query<{ n: number }, []>("select sum(length(text)) n from fragments").get();
    expect(count?.n).toBe(words.length);
    const asked = slice.mock.calls.map(([start, end]) => Math.min(end, words.length) - start);
    expect(Math.max(...asked)).toBeLessThanOrEqual(5 * maxSentenceChars);
    const file = (await open.mock.results[0]?.value) as FileBytes;
    expect(() => file.read(0, 1)).toThrow();
  } finally {
    await world.remove();
  }
});
