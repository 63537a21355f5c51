/** KV files that somebody has copied, and what of them opens with the keys that a data folder still has. */
import { Database } from "bun:sqlite";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { ListedObject } from "../../../db/kv-objects.ts";
import { KvScopes } from "../../../gateway/kv/scopes.ts";
import { ServerSecret } from "../../../gateway/tenant/secret.ts";
import { nobody } from "../../../worker/contract/owners.ts";
import { ObjectFile } from "../../../worker/tiers/object-file.ts";

const blockTokens = 16;
/** Keys of objects that are looked for, besides those of all scopes. */
const soughtKeys = 64;

/** Names of the files of objects in a data folder. */
export function kvFilesIn(dataDir: string): readonly string[] {
  const folder = join(dataDir, "kv");
  return existsSync(folder) ? readdirSync(folder).filter((name) => /^[0-9a-f]{32}$/.test(name)) : [];
}

const rowsIn = (dataDir: string): readonly ListedObject[] => {
  const db = new Database(join(dataDir, "spangate.db"), { readonly: true });
  try {
    return db
      .query<ListedObject, []>(
        `select o.id, o.sealed_key as sealedKey, o.model_digest as modelDigest, o.format, o.root_key as rootKey,
           o.previous_key as previousKey, o.last_key as lastKey, o.position, o.token_count as tokenCount,
           s.name as scopeName, s.sealed_key as scopeKey
         from kv_objects o join kv_scopes s on s.seq = o.scope_seq`,
      )
      .all();
  } finally {
    db.close();
  }
};

/** Copies of the files, and some of the sealed keys that opened them, as bytes to look for. */
export function copyKv(dataDir: string) {
  const files = new Map(kvFilesIn(dataDir).map((id) => [id, readFileSync(join(dataDir, "kv", id))] as const));
  const rows = rowsIn(dataDir);
  // Every search for a key reads the whole folder.
  const some = rows.filter((_, index) => index % Math.ceil(rows.length / soughtKeys) === 0);
  const sealedKeys = [...rows.map(({ scopeKey }) => scopeKey), ...some.map(({ sealedKey }) => sealedKey)];
  return { files, sealedKeys: [...new Set(sealedKeys.map((key) => Buffer.from(key).toString("latin1")))] };
}

/** @returns how many of the copies open with the keys that the folder's database and secret have now */
export async function openedWith(dataDir: string, files: ReadonlyMap<string, Uint8Array>): Promise<number> {
  const scopes = new KvScopes(new ServerSecret(readFileSync(join(dataDir, "secret"))).derive("kv"));
  let opened = 0;
  for (const row of rowsIn(dataDir)) {
    const [bytes, object] = [files.get(row.id), scopes.objectOf(row, nobody)];
    if (bytes === undefined || object === undefined) continue;
    // Segment 0 holds the tokens; its seal depends on no other field of the format than a block's size.
    const [layers, kvHeads, headDim, layout, element, codec] = [0, 0, 0, 0, 0, 0];
    const blocks = { name: "", bytes: Number(row.format.split("/").at(-1)), layers, kvHeads, headDim };
    const file = new ObjectFile(object, {
      ...{ modelDigest: row.modelDigest, blockTokens },
      blocks: { ...blocks, layout, element, codec },
    });
    const { at, span } = file.placeOf(0);
    const head = new Uint8Array(file.sizes.headBytes);
    if (await file.open(0, bytes.subarray(at, at + span), head, () => undefined)) opened += 1;
  }
  return opened;
}
