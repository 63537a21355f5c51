/** Objects on a real disk, written by one tiny world and read by others. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import { extentBlocks, type KvObject } from "../../worker/contract/kv-object.ts";
import type { KeepMessage } from "../../worker/contract/messages.ts";
import { nobody } from "../../worker/contract/owners.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import type { FileSystem } from "../../worker/tiers/file-system.ts";
import { TinyWorld } from "../engine/harness.ts";
import { blockTokens, submitPlan } from "../engine/plans.ts";
import { until } from "../support/until.ts";

export const modelDigest = "ab".repeat(32);
const salt = "c2FsdA==" as CacheSalt;
export const shape = { blockCount: 128, contextTokens: 4_096 };

export const openWorld = (blockCount = shape.blockCount, files?: FileSystem): TinyWorld =>
  new TinyWorld({ shape: { ...shape, blockCount }, modelDigest, ...(files && { files }) });

export class DiskFolder implements Disposable {
  readonly path = mkdtempSync(join(tmpdir(), "spangate-tiers-"));

  [Symbol.dispose](): void {
    rmSync(this.path, { recursive: true, force: true });
  }
}

/** A key as good as random, and another for each text. */
export const keyFrom = (text: string): Uint8Array => new Uint8Array(Bun.SHA256.hash(text) as Uint8Array);

/** What the gateway asks for so that these tokens of a span are kept, an object for each extent. */
export function keepMessages(folder: string, tokenIds: Int32Array): KeepMessage[] {
  const root = rootKey("fake", salt, "span");
  const keys = runBlockKeys(root, tokenIds, blockTokens, true);
  return Array.from({ length: Math.ceil(keys.length / extentBlocks) }, (_, extent) => {
    const first = extent * extentBlocks;
    const blockKeys = keys.slice(first, first + extentBlocks);
    const tokens = tokenIds.slice(first * blockTokens, (first + blockKeys.length) * blockTokens);
    const id = crypto.randomUUID().replaceAll("-", "");
    const object: KvObject = {
      id,
      dataKey: keyFrom(id),
      rootKey: root,
      previousKey: keys[first - 1] ?? root,
      lastKey: blockKeys.at(-1) as BlockKey,
      position: first * blockTokens,
      tokenCount: tokens.length,
      owner: nobody,
    };
    return { type: "keep", object, folder, temporaryName: `w0-${object.id}.tmp`, tokenIds: tokens, blockKeys };
  });
}

/** Computes spans and writes them. */
export async function writeSpans(
  folder: string,
  spans: readonly Int32Array[],
  world = openWorld(),
): Promise<KvObject[]> {
  world.engine.submit(submitPlan("prepare", { spans }, { params: { maxTokens: 0 } }));
  await world.settle();
  const messages = spans.flatMap((tokenIds) => keepMessages(folder, tokenIds));
  for (const message of messages) world.engine.tiers.disk?.receive(message);
  const ends = () => world.messages.filter(({ type }) => type === "kept" || type === "keep failed");
  await until(() => ends().length === messages.length, "all objects are written");
  const failed = ends().find(({ type }) => type === "keep failed");
  if (failed !== undefined) throw new Error(JSON.stringify(failed));
  return messages.map(({ object }) => object);
}
