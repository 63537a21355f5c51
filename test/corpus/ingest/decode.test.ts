import { expect, test } from "bun:test";
import { decodeText } from "../../../gateway/corpus/ingest/decode.ts";
import { yieldsDuring } from "../../support/yields.ts";

const utf8 = new TextEncoder();

test("a long text is decoded a part at a time, and others have their turn between", async () => {
  const text = "a\u{1f600}é".repeat(600_000);
  const { result, yields } = await yieldsDuring(() => decodeText(utf8.encode(text)));
  expect(result === text).toBe(true);
  expect(yields).toBeGreaterThanOrEqual(16);
});

test("a mark of the byte order is no part of the text", async () => {
  expect(await decodeText(utf8.encode("\ufeffSome text."))).toBe("Some text.");
});

test.each([
  ["half a character at the end", Uint8Array.of(0x61, 0xc3), "not valid UTF-8"],
  ["half a character far behind the start", new Uint8Array(600_000).fill(0x61).with(400_000, 0xff), "not valid UTF-8"],
  ["a NUL", Uint8Array.of(0x61, 0, 0x61), "NUL"],
  ["nothing but space", utf8.encode(" \n "), "no text"],
])("%s is refused", async (_, bytes, message) => {
  await expect(decodeText(bytes)).rejects.toThrow(message);
});
