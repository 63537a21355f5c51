/** Sealed blocks that the kernels open, against node:crypto, which seals them: every size, every instruction set. */
import { afterAll, describe, expect, test } from "bun:test";
import { createCipheriv } from "node:crypto";
import { closeSync, mkdtempSync, openSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildCpuKernels } from "../../kernels/build.ts";
import { openings, type SealedBlocks } from "../../worker/contract/kv-object.ts";
import { CpuKernels, KernelError, type KvPoolOptions } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { Random } from "./random.ts";

const libraryPath = await buildCpuKernels();
const sets = ["auto", "avx512", "avx2"] as const;
const all = sets.map((isa) => new CpuKernels(libraryPath, { isa, threadCount: 2 }));
const plain = new CpuKernels(libraryPath, { isa: "reference", threadCount: 1 });
afterAll(() => {
  for (const kernels of [...all, plain]) kernels.close();
});

const optionsOf = (change: Partial<KvPoolOptions>): KvPoolOptions => ({
  ...{ layerCount: 3, blockCount: 9, blockTokens: 16, queryHeads: 2, kvHeads: 1, headDim: 8, kvType: "float16" },
  ...{ rope: { inverseFrequencies: new Float32Array(0) }, maxPositions: 64 },
  ...change,
});

const folder = mkdtempSync(join(tmpdir(), "spangate-sealed-"));
afterAll(() => rmSync(folder, { recursive: true }));

/** A file that was just written, so that the system has it in memory. */
class TestFile implements Disposable {
  readonly path = join(folder, "file");
  readonly fd: number;

  constructor(content: Uint8Array) {
    writeFileSync(this.path, content);
    this.fd = openSync(this.path, "r");
  }

  [Symbol.dispose](): void {
    closeSync(this.fd);
  }
}

/** Some systems do not say what of a file they have in memory. */
const tellsWhatIsAtHand = ((): boolean => {
  using file = new TestFile(new Uint8Array(10));
  const pool = plain.openPool(optionsOf({}));
  const isAtHand = pool.isFileAtHand(file.fd, 0, 10);
  pool.close();
  return isAtHand;
})();

const bytesFrom = (random: Random, length: number): Uint8Array =>
  Uint8Array.from({ length }, () => random.integer(0, 255));

/** Segments as worker/tiers/object-file.ts has them. */
function seal(parts: Omit<SealedBlocks, "sealed">, blocks: readonly Uint8Array[]): SealedBlocks {
  const sealed = new Uint8Array(parts.span * blocks.length);
  for (const [index, block] of blocks.entries()) {
    const nonce = Buffer.alloc(12);
    nonce.writeUInt32LE(parts.firstSegment + index);
    const cipher = createCipheriv("aes-256-gcm", parts.key, nonce).setAAD(parts.header);
    sealed.set(Buffer.concat([cipher.update(block), cipher.final(), cipher.getAuthTag()]), index * parts.span);
  }
  return { ...parts, sealed };
}

/** From blocks of 16 bytes a layer to some that are longer than what is decrypted at once, and not a multiple of it. */
const shapes: readonly Partial<KvPoolOptions>[] = [
  { blockTokens: 1, kvType: "float16", headDim: 8, layerCount: 1 },
  { blockTokens: 1, kvType: "float32", headDim: 8, layerCount: 5 },
  { blockTokens: 2, headDim: 24, layerCount: 7 },
  { blockTokens: 16, headDim: 8 },
  { blockTokens: 16, headDim: 40, layerCount: 2 },
  { blockTokens: 16, headDim: 64, kvHeads: 2, kvType: "mx8" },
  { blockTokens: 64, headDim: 72, kvType: "float32", layerCount: 2 },
];

function sealedWorld(random: Random, shape: Partial<KvPoolOptions>, kernels: CpuKernels) {
  const pool = kernels.openPool(optionsOf(shape));
  const memory = new Uint8Array(pool.memory());
  for (let at = 0; at < memory.length; at++) memory[at] = at % 253;
  const bytes = pool.kvBytesPerBlock;
  const count = random.integer(1, 5);
  const blocks = Array.from({ length: count }, () => bytesFrom(random, bytes));
  const header = bytesFrom(random, random.pick([64, 1, 16, 37]));
  const span = bytes + 16 + random.pick([0, 1, 100]);
  const sealed = seal(
    { key: bytesFrom(random, 32), header, span, firstSegment: random.pick([0, 1, 33, 70_000]) },
    blocks,
  );
  const blockIds = Int32Array.from({ length: count }, (_, index) => (index * 2 + 1) % 9);
  return { pool, memory, before: memory.slice(), blocks, sealed, blockIds };
}

/** What the pool has of a block, layer after layer. */
function blockOf(memory: Uint8Array, { layerCount, blockCount }: KvPoolOptions, blockId: number): Buffer {
  const bytes = memory.length / layerCount / blockCount;
  const parts = Array.from({ length: layerCount }, (_, layer) => {
    const at = (layer * blockCount + blockId) * bytes;
    return memory.subarray(at, at + bytes);
  });
  return Buffer.concat(parts);
}

describe.each(sets.map((isa, index) => [isa, all[index] as CpuKernels] as const))("with %s", (_isa, kernels) => {
  test("opens what was sealed into its blocks, and touches no other", () => {
    const random = new Random(testSeed());
    for (const shape of [...shapes, ...shapes]) {
      const { pool, memory, before, blocks, sealed, blockIds } = sealedWorld(random, shape, kernels);
      expect(pool.opensBlocks).toBe(true);
      expect([...pool.openBlocks(sealed, blockIds)]).toEqual(blocks.map(() => 1));
      for (let id = 0; id < 9; id++) {
        const index = blockIds.indexOf(id);
        const expected = index < 0 ? blockOf(before, pool.options, id) : Buffer.from(blocks[index] ?? []);
        expect(blockOf(memory, pool.options, id).equals(expected)).toBe(true);
      }
      pool.close();
    }
  });

  test("finds any bit that is not as it was sealed, and leaves that block as it was", () => {
    const random = new Random(testSeed());
    for (const shape of shapes) {
      const { pool, memory, before, blocks, sealed, blockIds } = sealedWorld(random, shape, kernels);
      const flipped = (bytes: Uint8Array, at: number): Uint8Array =>
        bytes.with(at, (bytes[at] ?? 0) ^ (1 << random.integer(0, 7)));
      for (let round = 0; round < 30; round++) {
        memory.set(before);
        const at = random.integer(0, sealed.sealed.length - 1);
        const opened = pool.openBlocks({ ...sealed, sealed: flipped(sealed.sealed, at) }, blockIds);
        const damaged = Math.floor(at / sealed.span);
        expect([...opened]).toEqual(blocks.map((_, index) => (index === damaged ? 0 : 1)));
        const id = blockIds[damaged] ?? -1;
        expect(blockOf(memory, pool.options, id).equals(blockOf(before, pool.options, id))).toBe(true);
      }
      const wrong: Partial<SealedBlocks>[] = [
        { key: flipped(sealed.key, random.integer(0, 31)) },
        { header: flipped(sealed.header, sealed.header.length - 1) },
        { header: sealed.header.subarray(1).length > 0 ? sealed.header.subarray(1) : Uint8Array.of(1, 2) },
        { header: Buffer.concat([sealed.header, Uint8Array.of(0)]) },
        { firstSegment: sealed.firstSegment + 1 },
      ];
      memory.set(before);
      for (const change of wrong) {
        expect([...pool.openBlocks({ ...sealed, ...change }, blockIds)]).toEqual(blocks.map(() => 0));
      }
      expect(Buffer.from(memory).equals(before)).toBe(true);
      pool.close();
    }
  });

  test.skipIf(!tellsWhatIsAtHand)("opens what lies in a file as what lies in memory", () => {
    const random = new Random(testSeed());
    for (const shape of [...shapes, ...shapes]) {
      const { pool, memory, before, blocks, sealed, blockIds } = sealedWorld(random, shape, kernels);
      pool.openBlocks(sealed, blockIds);
      const expected = memory.slice();
      const at = random.pick([0, 1, 4_096, 9_999]);
      const content = Buffer.concat([bytesFrom(random, at), sealed.sealed]);
      using file = new TestFile(content);
      const inFile = { ...sealed, fd: file.fd, at };
      memory.set(before);
      expect([...pool.openFileBlocks(inFile, blockIds)]).toEqual(blocks.map(() => openings.opened));
      expect(Buffer.from(memory).equals(expected)).toBe(true);
      const wrongAt = random.integer(0, sealed.sealed.length - 1);
      const damaged = Math.floor(wrongAt / sealed.span);
      using other = new TestFile(content.with(at + wrongAt, (content[at + wrongAt] ?? 0) ^ 4));
      memory.set(before);
      const { damaged: wrong, opened } = openings;
      const found = [...pool.openFileBlocks({ ...inFile, fd: other.fd }, blockIds)];
      expect(found).toEqual(blocks.map((_, index) => (index === damaged ? wrong : opened)));
      const id = blockIds[damaged] ?? -1;
      expect(blockOf(memory, pool.options, id).equals(blockOf(before, pool.options, id))).toBe(true);
      pool.close();
    }
  });

  test("what a file does not have is not at hand, and its block stays as it was", () => {
    const random = new Random(testSeed());
    for (const shape of shapes) {
      const { pool, memory, before, blocks, sealed, blockIds } = sealedWorld(random, shape, kernels);
      using file = new TestFile(sealed.sealed);
      const inFile = { ...sealed, fd: file.fd, at: 0 };
      const left = random.integer(0, sealed.sealed.length - 1);
      truncateSync(file.path, left);
      const whole = tellsWhatIsAtHand ? Math.floor(left / sealed.span) : 0;
      const { notAtHand, opened } = openings;
      const expected = blocks.map((_, index) => (index < whole ? opened : notAtHand));
      expect([...pool.openFileBlocks(inFile, blockIds)]).toEqual(expected);
      for (const id of blockIds.subarray(whole)) {
        expect(blockOf(memory, pool.options, id).equals(blockOf(before, pool.options, id))).toBe(true);
      }
      expect(pool.isFileAtHand(file.fd, 0, sealed.sealed.length)).toBe(false);
      // A number that is no open file's.
      const none = [...pool.openFileBlocks({ ...inFile, fd: 1_000_000 }, blockIds)];
      expect(none).toEqual(blocks.map(() => notAtHand));
      pool.close();
    }
  });

  test("refuses what cannot be a block", () => {
    const { pool, sealed } = sealedWorld(new Random(1), { layerCount: 2 }, kernels);
    const one = { ...sealed, sealed: sealed.sealed.subarray(0, sealed.span) };
    const of = (...ids: number[]): Int32Array => Int32Array.from(ids);
    expect(() => pool.openBlocks(one, of(9))).toThrow(/block id/);
    expect(() => pool.openBlocks(one, of(-1))).toThrow(/block id/);
    expect(() => pool.openBlocks({ ...sealed, sealed: new Uint8Array(2 * sealed.span) }, of(3, 3))).toThrow(/block id/);
    expect(() => pool.openBlocks(one, of(1, 2))).toThrow(/sealed must have/);
    expect(() => pool.openBlocks(one, of())).toThrow(/blockIds/);
    expect(() => pool.openBlocks({ ...one, key: new Uint8Array(31) }, of(1))).toThrow(/key must have at least 32/);
    expect(() => pool.openBlocks({ ...one, header: new Uint8Array(0) }, of(1))).toThrow(/header/);
    expect(() => pool.openBlocks({ ...one, span: pool.kvBytesPerBlock + 15 }, of(1))).toThrow(/configuration/);
    expect(() => pool.openBlocks({ ...one, firstSegment: 2 ** 31 }, of(1))).toThrow(/firstSegment/);
    const inFile = { ...sealed, fd: 0, at: 0 };
    expect(() => pool.openFileBlocks(inFile, of(9))).toThrow(/block id/);
    expect(() => pool.openFileBlocks({ ...inFile, fd: -1 }, of(1))).toThrow(/fd/);
    expect(() => pool.openFileBlocks({ ...inFile, at: -1 }, of(1))).toThrow(/at/);
    expect(() => pool.openFileBlocks({ ...inFile, at: Number.NaN }, of(1))).toThrow(/at/);
    expect(() => pool.openFileBlocks({ ...inFile, span: 15 }, of(1))).toThrow(/configuration/);
    expect(() => pool.isFileAtHand(0, 0, 0)).toThrow(/bytes/);
    pool.close();
  });
});

test("without the instructions blocks are opened elsewhere", () => {
  const pool = plain.openPool(optionsOf({}));
  expect(pool.opensBlocks).toBe(false);
  const parts = {
    key: new Uint8Array(32),
    header: new Uint8Array(64),
    span: pool.kvBytesPerBlock + 16,
    firstSegment: 1,
  };
  const sealed = seal(parts, [new Uint8Array(pool.kvBytesPerBlock)]);
  expect(() => pool.openBlocks(sealed, Int32Array.of(1))).toThrow(KernelError);
});

test("a block whose layers are no whole blocks of the cipher is opened elsewhere", () => {
  const [kernels] = all;
  const pool = (kernels ?? plain).openPool(optionsOf({ blockTokens: 1, headDim: 32, kvType: "mx8" }));
  expect([pool.kvBytesPerBlock % (3 * 16) > 0, pool.opensBlocks]).toEqual([true, false]);
});
