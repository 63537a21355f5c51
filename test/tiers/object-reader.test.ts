/**
 * A file that is larger than what is read at once: in which order its pieces are read, opened and given back; and one
 * that the system has in memory, which is not read here.
 */
import { expect, test } from "bun:test";
import type { BlockMover } from "../../worker/backend/backend.ts";
import { openings } from "../../worker/contract/kv-object.ts";
import type { BlockId } from "../../worker/contract/units.ts";
import type { FileSystem } from "../../worker/tiers/file-system.ts";
import { ObjectFile } from "../../worker/tiers/object-file.ts";
import { ObjectReader, type Placed, ReadBuffers } from "../../worker/tiers/object-reader.ts";
import { countUp } from "../engine/plans.ts";
import { keepMessages, modelDigest } from "./disk-world.ts";

/** More than half of what is read at once, so that each piece is one block. */
const blockBytes = 2_200_000;
const blockCount = 4;
const blocks = { name: "", bytes: blockBytes, layers: 1, kvHeads: 1, headDim: 1, layout: 1, element: 1, codec: 0 };
const shape = { modelDigest, blockTokens: 4, blocks };
const atOnce = () => undefined;
const mover: BlockMover = { format: blocks, pack: () => undefined, unpack: () => undefined };

async function sealedFile() {
  const tokenIds = countUp(3, 4 * blockCount);
  const [message] = keepMessages("", tokenIds);
  if (message === undefined) throw new Error("there is no message");
  const file = new ObjectFile({ ...message.object, tokenCount: tokenIds.length }, shape);
  const bytes = new Uint8Array(file.sizes.fileBytes);
  bytes.set(file.firstPage());
  for (let segment = 0; segment <= blockCount; segment++) {
    const { at, span } = file.placeOf(segment);
    const plain = segment === 0 ? file.head(tokenIds) : new Uint8Array(blockBytes).fill(segment);
    await file.seal(segment, plain, bytes.subarray(at, at + span), atOnce);
  }
  return { file, bytes };
}

/** Notes what is read and when the file is closed; a read ends when `release` says so. */
class HeldFile {
  readonly log: string[] = [];
  readonly system: FileSystem;
  readonly #held: (() => void)[] = [];
  isHeld = false;

  constructor({ file, bytes }: Awaited<ReturnType<typeof sealedFile>>) {
    const blockOf = (position: number): number =>
      Array.from({ length: blockCount }, (_, index) => file.placeOf(index + 1).at).indexOf(position);
    const open = async () => ({
      ...{ write: () => Promise.reject(), datasync: () => Promise.reject(), sync: () => Promise.reject() },
      close: async () => void this.log.push("closed"),
      stat: async () => ({ size: bytes.length }),
      read: async (into: Uint8Array, at: number, length: number, position: number) => {
        this.log.push(`read ${blockOf(position)}`);
        if (this.isHeld) await new Promise<void>((resolve) => this.#held.push(resolve));
        into.set(bytes.subarray(position, position + length), at);
        return { bytesRead: length };
      },
    });
    this.system = { open, rename: () => Promise.reject(), unlink: () => Promise.reject() };
  }

  release(): void {
    this.isHeld = false;
    for (const resolve of this.#held.splice(0)) resolve();
  }
}

async function openHeld(buffers: ReadBuffers) {
  const sealed = await sealedFile();
  const held = new HeldFile(sealed);
  const reader = await ObjectReader.open(held.system, "", sealed.file.object, { shape, mover }, buffers);
  await reader.tokens(atOnce);
  return { held, reader };
}

test("each piece is read while the one before is opened", async () => {
  const { held, reader } = await openHeld(new ReadBuffers());
  // The file's beginning has its first block.
  expect(held.log).toEqual(["read -1", "read 1"]);
  const filled: number[] = [];
  const noting: BlockMover = { ...mover, unpack: (_, packed) => void filled.push(packed[0], packed[blockBytes - 1]) };
  for (let index = 0; index < blockCount; index++) (await reader.blocks(index, 1, noting, atOnce)).place([0 as never]);
  expect(filled).toEqual([1, 1, 2, 2, 3, 3, 4, 4]);
  expect(held.log).toEqual(["read -1", "read 1", "read 2", "read 3"]);
  await reader.close();
});

test("blocks that are there already are passed over", async () => {
  const { held, reader } = await openHeld(new ReadBuffers());
  const filled: number[] = [];
  const noting: BlockMover = { ...mover, unpack: (_, packed) => void filled.push(packed[0]) };
  (await reader.blocks(3, 1, noting, atOnce)).place([0 as never]);
  expect([filled, held.log]).toEqual([[4], ["read -1", "read 1", "read 3"]]);
  await reader.close();
});

test("memory is given to other files when nothing is read into it any more", async () => {
  const buffers = new ReadBuffers();
  const { held, reader } = await openHeld(buffers);
  held.isHeld = true;
  // The second piece is opened, and the third is being read.
  (await reader.blocks(1, 1, mover, atOnce)).place([0 as never]);
  const closed = reader.close();
  await Bun.sleep(0);
  expect(held.log).not.toContain("closed");
  held.release();
  await closed;
  expect(held.log).toEqual(["read -1", "read 1", "read 2", "closed"]);
  const given = [buffers.take(1), buffers.take(1)];
  expect(new Set(given.map(({ buffer }) => buffer)).size).toBe(2);
  expect(given.every(({ byteLength }) => byteLength > blockBytes)).toBe(true);
});

/** The system says that it has the file in memory, until `left` blocks were opened there. */
async function openAtHand(left: number, wrong?: number) {
  const sealed = await sealedFile();
  const held = new HeldFile(sealed);
  const opened: number[] = [];
  const asked: string[] = [];
  const openOne = (block: number): number => {
    if (left === 0) return openings.notAtHand;
    left -= 1;
    if (block === wrong) return openings.damaged;
    opened.push(block);
    return openings.opened;
  };
  const files: BlockMover["files"] = {
    isAtHand: (fd, at, bytes) => asked.push(`${fd} ${at} ${bytes}`) > 0,
    open: ({ fd, firstSegment, at }, blockIds) => {
      expect([fd, at]).toEqual([7, sealed.file.placeOf(firstSegment).at]);
      return Uint8Array.from(blockIds, (_, index) => openOne(firstSegment - 1 + index));
    },
  };
  const parts: BlockMover = { ...mover, unpack: (_, packed) => void opened.push(packed[0] - 1), files };
  const { open } = held.system;
  const system: FileSystem = { ...held.system, open: async (path, flags) => ({ ...(await open(path, flags)), fd: 7 }) };
  const opening = ObjectReader.open(system, "", sealed.file.object, { shape, mover: parts }, new ReadBuffers());
  return { held, opened, asked, parts, bytes: sealed.bytes.length, reader: await opening };
}

const ids = (count: number): BlockId[] => Array.from({ length: count }, (_, index) => index as BlockId);

test("of a file that the system has in memory only the beginning is read here", async () => {
  const { held, opened, asked, parts, bytes, reader } = await openAtHand(blockCount);
  await reader.tokens(atOnce);
  for (let index = 0; index < blockCount; index++) {
    const { count, place } = await reader.blocks(index, blockCount - index, parts, atOnce);
    expect([count, place(ids(count))]).toEqual([1, { filled: 1 }]);
  }
  expect([asked, opened, held.log]).toEqual([[`7 0 ${bytes}`], [0, 1, 2, 3], ["read -1"]]);
  await reader.close();
});

test("what has left the system's memory meanwhile is read as any file is", async () => {
  const { held, opened, parts, reader } = await openAtHand(1);
  await reader.tokens(atOnce);
  const places: Placed[] = [];
  for (let index = 0; index < blockCount; ) {
    const { count, place } = await reader.blocks(index, blockCount - index, parts, atOnce);
    places.push(place(ids(count)));
    index += places.at(-1)?.filled ?? 0;
  }
  expect(places).toEqual([{ filled: 1 }, { filled: 0, end: "later" }, { filled: 1 }, { filled: 1 }, { filled: 1 }]);
  expect([opened, held.log]).toEqual([
    [0, 1, 2, 3],
    ["read -1", "read 1", "read 2", "read 3"],
  ]);
  await reader.close();
});

test("a damaged block of a file in memory is told from one that is not at hand", async () => {
  const { parts, reader } = await openAtHand(blockCount, 0);
  await reader.tokens(atOnce);
  const { place } = await reader.blocks(0, 1, parts, atOnce);
  expect(place(ids(1))).toEqual({ filled: 0, end: "damaged" });
  await reader.close();
});

test("a file whose size cannot be told is closed once its read has ended, which may be another one after a short one", async () => {
  const sealed = await sealedFile();
  const held = new HeldFile(sealed);
  const { promise: isToldSize, reject: refuseSize } = Promise.withResolvers<{ size: number }>();
  const open: FileSystem["open"] = async (path, flags) => {
    const file = await held.system.open(path, flags);
    const read: typeof file.read = async (into, at, length, position) => {
      await Bun.sleep(1);
      return await file.read(into, at, Math.min(length, 1_000_000), position);
    };
    return { ...file, stat: () => isToldSize, read };
  };
  const system: FileSystem = { ...held.system, open };
  const opening = ObjectReader.open(system, "", sealed.file.object, { shape, mover }, new ReadBuffers());
  refuseSize(new Error("no size"));
  await expect(opening).rejects.toThrow("no size");
  await Bun.sleep(10);
  expect(held.log.length).toBeGreaterThan(2);
  expect(held.log.indexOf("closed")).toBe(held.log.length - 1);
});
