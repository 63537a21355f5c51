/** A file that is larger than what is read at once: in which order its pieces are read, opened and given back. */
import { expect, test } from "bun:test";
import type { BlockMover } from "../../worker/backend/backend.ts";
import type { FileSystem } from "../../worker/tiers/file-system.ts";
import { ObjectFile } from "../../worker/tiers/object-file.ts";
import { ObjectReader, ReadBuffers } from "../../worker/tiers/object-reader.ts";
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
  const reader = await ObjectReader.open(held.system, "", sealed.file.object, shape, buffers);
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
