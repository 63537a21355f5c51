/** The file's format against a twin that is written apart from it, over WebCrypto; and blocks of the CPU's pool. */
import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { BlockMover } from "../../worker/backend/backend.ts";
import { CpuBlockMover } from "../../worker/backend/cpu/block-mover.ts";
import type { BlockId } from "../../worker/contract/units.ts";
import { openCpuKernels } from "../../worker/native/cpu-kernels.ts";
import type { FileSystem } from "../../worker/tiers/file-system.ts";
import { ObjectFile } from "../../worker/tiers/object-file.ts";
import { ObjectReader, ReadBuffers } from "../../worker/tiers/object-reader.ts";
import { countUp } from "../engine/plans.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import { DiskFolder, keepMessages, modelDigest, writeSpans } from "./disk-world.ts";

const pageBytes = 4_096;

/** A segment as the format has it: ciphertext and tag, then zeros up to a page. */
async function sealedTwin(dataKey: Uint8Array, header: Uint8Array, index: number, plain: Uint8Array) {
  const key = await crypto.subtle.importKey("raw", Buffer.from(dataKey), "AES-GCM", false, ["encrypt"]);
  const iv = Buffer.alloc(12);
  iv.writeUInt32LE(index, 0);
  const additionalData = Buffer.from(header);
  const sealed = Buffer.from(
    await crypto.subtle.encrypt({ name: "AES-GCM", iv, additionalData }, key, Buffer.from(plain)),
  );
  return Buffer.concat([sealed, Buffer.alloc((pageBytes - (sealed.length % pageBytes)) % pageBytes)]);
}

function headerTwin(id: string, blockCount: number, headBytes: number, blockBytes: number, fileBytes: number): Buffer {
  const header = Buffer.alloc(64);
  Buffer.from("53504b4756", "hex").copy(header);
  Buffer.from([0x53, 0x50, 0x47, 0x4b, 0x56, 0x0d, 0x0a, 0x1a]).copy(header);
  header.writeUInt16LE(1, 8);
  header.writeUInt16LE(blockCount + 1, 10);
  header.writeUInt32LE(headBytes, 12);
  Buffer.from(id, "hex").copy(header, 16);
  header.writeBigUInt64LE(BigInt(blockBytes), 32);
  header.writeBigUInt64LE(BigInt(fileBytes), 40);
  header.writeUInt32LE(blockBytes, 48);
  return header;
}

describe("a file", () => {
  test.each([1, 3, 4, 22, 128])("of %d tokens is its twin, byte for byte", async (tokenCount) => {
    using folder = new DiskFolder();
    const tokenIds = countUp(5, tokenCount);
    const [object] = await writeSpans(folder.path, [tokenIds]);
    if (object === undefined) throw new Error("nothing was written");
    const found = readFileSync(join(folder.path, object.id));
    const blockCount = Math.ceil(tokenCount / 4);
    const [headBytes, blockBytes] = [84 + 4 * tokenCount, 48];
    const fileBytes = pageBytes * (2 + blockCount);
    expect(found.length).toBe(fileBytes);
    const header = headerTwin(object.id, blockCount, headBytes, blockBytes, fileBytes);
    expect(found.subarray(0, pageBytes)).toEqual(Buffer.concat([header, Buffer.alloc(pageBytes - 64)]));
    const head = Buffer.alloc(headBytes);
    Buffer.from(modelDigest, "hex").copy(head);
    head.writeUInt32LE(0, 32);
    [4, 3, 1, 1].forEach((value, index) => void head.writeUInt16LE(value, 36 + 2 * index));
    head[45] = 3;
    Buffer.from(object.previousKey, "hex").copy(head, 48);
    Buffer.from(object.lastKey, "hex").copy(head, 64);
    head.writeUInt32LE(tokenCount, 80);
    tokenIds.forEach((tokenId, index) => void head.writeUInt32LE(tokenId, 84 + 4 * index));
    const sealedHead = await sealedTwin(object.dataKey, header, 0, head);
    expect(Buffer.from(found.subarray(pageBytes, 2 * pageBytes))).toEqual(sealedHead);
    const turn = () => undefined;
    const shape = { modelDigest, blockTokens: 4, blocks: new FakeBackend().mover.format };
    const file = new ObjectFile(object, shape);
    for (let index = 1; index <= blockCount; index++) {
      const sealed = Buffer.from(found.subarray((index + 1) * pageBytes, (index + 2) * pageBytes));
      const plain = new Uint8Array(blockBytes);
      expect(await file.open(index, sealed, plain, turn)).toBe(true);
      expect(sealed).toEqual(await sealedTwin(object.dataKey, header, index, plain));
      const used = Math.min(4, tokenCount - 4 * (index - 1));
      const words = new Int32Array(plain.buffer);
      for (const at of [0, 4, 8]) expect(words.subarray(at + used, at + 4)).toEqual(new Int32Array(4 - used));
      expect([...words.subarray(4, 4 + used)]).toEqual([...tokenIds.subarray(4 * index - 4, 4 * index - 4 + used)]);
    }
  });

  test("has no size that no object has", () => {
    const [message] = keepMessages("", countUp(1, 8));
    if (message === undefined) throw new Error("there is no message");
    const shape = { modelDigest, blockTokens: 4, blocks: new FakeBackend().mover.format };
    for (const tokenCount of [0, -1, 1.5, 129, Number.NaN, 2 ** 40]) {
      expect(() => new ObjectFile({ ...message.object, tokenCount }, shape)).toThrow(RangeError);
    }
    expect(() => new ObjectFile({ ...message.object, dataKey: new Uint8Array(31) }, shape)).toThrow(RangeError);
  });
});

/** A file in memory that reads a part of what it is asked for. */
const systemOf = (bytes: Uint8Array): FileSystem => ({
  open: async () => ({
    ...{ write: () => Promise.reject(new Error()), datasync: async () => undefined, sync: async () => undefined },
    close: async () => undefined,
    stat: async () => ({ size: bytes.byteLength }),
    read: async (into, at, length, position) => {
      const part = bytes.subarray(position, position + Math.min(length, 100_000));
      into.set(part, at);
      return { bytesRead: part.byteLength };
    },
  }),
  rename: async () => undefined,
  unlink: async () => undefined,
});

describe("a file that the pool's processor opens", () => {
  test("fills the same blocks as one that is opened outside of it, and no block with what was not written", async () => {
    const kernels = await openCpuKernels({ threadCount: 2 });
    try {
      // 4 MiB are read at once, 1 MiB opened: this file takes both several times.
      const [layerCount, blockCount, blockTokens, tokenCount] = [24, 32, 16, 500];
      const rope = { inverseFrequencies: new Float32Array(0) };
      const pool = kernels.openPool({
        ...{ layerCount, blockCount, blockTokens, queryHeads: 4, kvHeads: 4, headDim: 64, kvType: "float16", rope },
        maxPositions: 512,
      });
      const mover = new CpuBlockMover(pool, "any");
      if (mover.open === undefined) return;
      const [message] = keepMessages("", countUp(3, 8));
      if (message === undefined) throw new Error("there is no message");
      const shape = { modelDigest, blockTokens, blocks: mover.format };
      const object = { ...message.object, tokenCount };
      const file = new ObjectFile(object, shape);
      const bytes = new Uint8Array(file.sizes.fileBytes);
      bytes.set(file.firstPage());
      const plainOf = (index: number): Uint8Array =>
        new Uint8Array(mover.format.bytes).map((_, at) => (at * 7 + index) % 251);
      for (let segment = 0; segment <= blockCount; segment++) {
        const { at, span } = file.placeOf(segment);
        const plain = segment === 0 ? file.head(countUp(3, tokenCount)) : plainOf(segment - 1);
        await file.seal(segment, plain, bytes.subarray(at, at + span), () => undefined);
      }
      const memory = new Uint8Array(pool.memory());
      const fill = async (parts: BlockMover, from: Uint8Array): Promise<number> => {
        memory.fill(0xaa);
        const reader = await ObjectReader.open(systemOf(from), "", object, { shape, mover: parts }, new ReadBuffers());
        await reader.tokens(() => undefined);
        for (let index = 0; index < blockCount; ) {
          const blocks = await reader.blocks(index, blockCount - index, parts, () => undefined);
          const ids = Array.from({ length: blocks.count }, (_, offset) => (blockCount - 1 - index - offset) as BlockId);
          const { filled } = blocks.place(ids);
          if (filled < blocks.count) return index + filled;
          index += filled;
        }
        return blockCount;
      };
      expect(await fill(mover, bytes)).toBe(blockCount);
      const inside = Bun.SHA256.hash(memory, "hex");
      const packed = new Uint8Array(mover.format.bytes);
      for (let index = 0; index < blockCount; index++) {
        mover.pack((blockCount - 1 - index) as BlockId, blockTokens, packed);
        expect(Buffer.from(packed).equals(plainOf(index))).toBe(true);
      }
      const { format } = mover;
      const outside: BlockMover = { format, pack: mover.pack.bind(mover), unpack: mover.unpack.bind(mover) };
      expect(await fill(outside, bytes)).toBe(blockCount);
      expect(Bun.SHA256.hash(memory, "hex")).toBe(inside);
      const damaged = bytes.slice();
      damaged[file.placeOf(20).at + 5] ^= 1;
      expect(await fill(mover, damaged)).toBe(19);
      mover.pack((blockCount - 20) as BlockId, blockTokens, packed);
      expect(packed.every((byte) => byte === 0xaa)).toBe(true);
      await expect(fill(outside, damaged)).rejects.toThrow("segment 20 is not what was written");
    } finally {
      kernels.close();
    }
  });
});

describe("a block of the CPU's pool", () => {
  const options = { layerCount: 3, blockCount: 5, blockTokens: 16, queryHeads: 4, kvHeads: 2 } as const;

  test.each([
    ["float16", 8],
    ["float32", 8],
    ["mx8", 64],
  ] as const)("of %s comes back bit for bit, without what it held before", async (kvType, headDim) => {
    const kernels = await openCpuKernels({ threadCount: 1 });
    try {
      const rope = { inverseFrequencies: new Float32Array(0) };
      const pool = kernels.openPool({ ...options, kvType, headDim, rope, maxPositions: 64 });
      const memory = new Uint8Array(pool.memory());
      for (let at = 0; at < memory.length; at++) memory[at] = 1 + (at % 251);
      const mover = new CpuBlockMover(pool, "any");
      const packed = new Uint8Array(mover.format.bytes);
      const [from, to] = [2 as BlockId, 4 as BlockId];
      mover.pack(from, 16, packed);
      const others = memory.slice();
      mover.unpack(to, packed);
      const again = new Uint8Array(mover.format.bytes);
      mover.pack(to, 16, again);
      expect(again).toEqual(packed);
      // Only that block has changed, in every layer.
      const layerBytes = memory.length / 3;
      const blockBytes = layerBytes / 5;
      const changed = new Set<number>();
      memory.forEach((byte, at) => {
        if (byte !== others[at]) changed.add(Math.floor((at % layerBytes) / blockBytes));
      });
      expect([...changed]).toEqual([4]);
      mover.pack(from, 5, packed);
      const bytes = { float16: 2, float32: 4, mx8: 1 }[kvType];
      // K is [headDim][blockTokens], V [blockTokens][headDim], in mx8 their scales so too, head after head.
      const tokens: number[] = [];
      for (const width of kvType === "mx8" ? [headDim, headDim / 32] : [headDim]) {
        for (let i = 0; i < width * 16; i++) tokens.push(i % 16);
        for (let i = 0; i < width * 16; i++) tokens.push(Math.floor(i / width));
      }
      expect(packed.length).toBe(3 * 2 * tokens.length * bytes);
      const wrong = packed.findIndex((byte, at) => {
        return (byte === 0) !== tokens[Math.floor(at / bytes) % tokens.length] >= 5;
      });
      expect(wrong).toBe(-1);
      const { element, codec } = mover.format;
      expect([element, codec]).toEqual({ float16: [1, 0], float32: [2, 0], mx8: [3, 1] }[kvType]);
    } finally {
      kernels.close();
    }
  });
});
