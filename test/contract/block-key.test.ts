import { expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { foldSpan, nextBlockKey, rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { fc } from "../support/fast-check.ts";

const int32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32LE(value);
  return bytes;
};
const hashed = (...parts: readonly Buffer[]): string =>
  createHash("sha256").update(Buffer.concat(parts)).digest("hex").slice(0, 32);
/** Each field with its length in bytes before it. */
const fields = (...texts: readonly string[]): string =>
  hashed(...texts.flatMap((text) => [int32(Buffer.byteLength(text)), Buffer.from(text)]));
const next = (key: string, tokenIds: readonly number[]): string =>
  hashed(Buffer.from(key), int32(tokenIds.length), ...tokenIds.map(int32));

const text = fc.string({ unit: "grapheme", maxLength: 300 });
const ids = fc.array(fc.integer({ min: -1, max: 2 ** 31 - 1 }), { maxLength: 2_500 });

test("keys are the hash of their fields, whatever these are", () => {
  fc.assert(
    fc.property(text, text, ids, ids, (model, salt, first, second) => {
      const root = rootKey(model, salt as CacheSalt, "blend 0.25");
      expect(root as string).toBe(fields("spangate/1", model, salt, "blend 0.25", ""));
      const below = rootKey(model, salt as CacheSalt, "span", root);
      expect(below as string).toBe(fields("spangate/1", model, salt, "span", root));
      expect(foldSpan(root, below) as string).toBe(fields("fold", root, below));
      const key = nextBlockKey(root, Int32Array.from(first));
      expect(key as string).toBe(next(root, first));
      const part = Int32Array.from([0, ...second, 0]).subarray(1, second.length + 1);
      expect(nextBlockKey(key, part) as string).toBe(next(key, second));
    }),
    { numRuns: 200 },
  );
});

test("a run has a key a block, the last one partly filled where it is closed", () => {
  const root = rootKey("model", "salt" as CacheSalt, "main");
  const first = next(root, [1, 2, 3, 4]);
  const keys = (closed: boolean) => runBlockKeys(root, Int32Array.of(1, 2, 3, 4, 5), 4, closed) as string[];
  expect(keys(false)).toEqual([first]);
  expect(keys(true)).toEqual([first, next(first, [5])]);
});

test("what is no key and what is too long are no part of a key", () => {
  expect(() => nextBlockKey("short" as BlockKey, Int32Array.of(1))).toThrow("length");
  expect(() => rootKey("m".repeat(5_000), "salt" as CacheSalt, "main")).toThrow("too long");
});
