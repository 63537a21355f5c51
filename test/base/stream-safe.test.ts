import { expect, test } from "bun:test";
import { streamSafe } from "../../gateway/base/stream-safe.ts";
import { fc } from "../support/fast-check.ts";

const joiner = "\u034f";

test("rows of marks that any language has stay as they are", () => {
  fc.assert(
    fc.property(fc.string({ unit: "binary", maxLength: 300 }), (text) => {
      if (!/\p{M}{31}/u.test(text)) expect(streamSafe(text)).toBe(text);
    }),
  );
  const thirty = `e${"\u0301\u0323".repeat(15)}`;
  expect(streamSafe(thirty)).toBe(thirty);
});

test("a longer row is parted after each 30 marks, and nothing else changes", () => {
  for (const count of [31, 60, 61, 16_000]) {
    const text = `a${"\u0315\u0327".repeat(count)}b`;
    const safe = streamSafe(text);
    expect(safe.replaceAll(joiner, "")).toBe(text);
    expect(Math.max(...safe.split(/[ab]|\u034f/).map((row) => row.length))).toBe(30);
  }
});
