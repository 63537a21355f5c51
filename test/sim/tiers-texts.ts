/** Tenants, corpora and fragments of a simulated server, with what the KV of a fragment comes to. */
import type { Database } from "bun:sqlite";
import { type CorpusId, newId, type TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import { insertRow } from "../../db/rows.ts";
import { corpora } from "../../db/schema.ts";
import { insertTenant } from "../../db/tenants.ts";
import type { ScopeFacts } from "../../gateway/kv/scopes.ts";
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { KvObject } from "../../worker/contract/kv-object.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import type { ObjectFile, ObjectShape } from "../../worker/tiers/object-file.ts";
import { blockTokens } from "../engine/plans.ts";
import { seenTerm, tokenState } from "../support/fake-backend.ts";
import type { Choices } from "./random.ts";

export interface Corpus {
  readonly id: CorpusId;
  readonly tenantId: TenantId;
  readonly number: number;
  epoch: number;
  isGone: boolean;
}

export interface Fragment {
  readonly corpus: Corpus;
  readonly salt: CacheSalt;
  readonly epoch: number;
  readonly tokenIds: Int32Array;
  readonly rootKey: BlockKey;
  readonly blockKeys: readonly BlockKey[];
  /** Deleted: nobody asks for it any more. */
  isGone: boolean;
  /** When its KV was evicted last, by the world's count of actions. */
  evictedAt: number;
}

export const factsOf = ({ corpus, epoch }: Fragment): ScopeFacts => ({
  ...{ tenantId: corpus.tenantId, corpusId: corpus.id, saltEpoch: epoch },
});

export const saltOf = ({ number, epoch }: Pick<Corpus, "number" | "epoch">): CacheSalt =>
  Buffer.from(`corpus ${number} at ${epoch}`).toString("base64") as CacheSalt;

export class Texts {
  readonly corpora: Corpus[] = [];
  readonly fragments: Fragment[] = [];
  readonly #client: Database;
  readonly #choices: Choices;

  /** Two tenants, each with two corpora, in a database that has nothing else. */
  constructor(db: Db, choices: Choices) {
    this.#client = db.client;
    this.#choices = choices;
    for (const table of ["kv_objects", "kv_scopes", "corpora", "tenants"]) db.client.run(`delete from ${table}`);
    for (let tenant = 0; tenant < 2; tenant++) {
      const tenantId = newId("tenant");
      insertTenant(db, { id: tenantId, name: `t${tenant}`, createdAt: 0 });
      for (let index = 0; index < 2; index++) {
        const id = newId("corpus");
        const fields = { name: "", description: null, metadata: {}, createdAt: 0, expiresAfterDays: null };
        insertRow(db, "insertCorpus", corpora, { ...fields, id, tenantId, lastActiveAt: 0 });
        this.corpora.push({ id, tenantId, number: this.corpora.length, epoch: 0, isGone: false });
      }
    }
  }

  get live(): readonly Fragment[] {
    return this.fragments.filter(({ isGone }) => !isGone);
  }

  /** All keys of the texts that begin with this key; of a block's key itself alone. */
  chainOf(key: BlockKey): readonly BlockKey[] {
    const chains = this.fragments.filter((fragment) => fragment.rootKey === key);
    return chains.length === 0 ? [key] : chains.flatMap(({ blockKeys }) => blockKeys);
  }

  /** A new text of some corpus; undefined when none is left. */
  add(mostTokens: number): Fragment | undefined {
    const corpora = this.corpora.filter(({ isGone }) => !isGone);
    if (corpora.length === 0) return undefined;
    const tokenCount = this.#choices.int(1, mostTokens);
    const tokenIds = Int32Array.from({ length: tokenCount }, () => this.#choices.int(2, 96));
    return this.#add(this.#choices.pick(corpora), tokenIds);
  }

  #add(corpus: Corpus, tokenIds: Int32Array): Fragment {
    const salt = saltOf(corpus);
    const root = rootKey("fake", salt, "span");
    const fragment: Fragment = {
      ...{ corpus, salt, epoch: corpus.epoch, tokenIds, rootKey: root, isGone: false, evictedAt: -1 },
      blockKeys: runBlockKeys(root, tokenIds, blockTokens, true),
    };
    this.fragments.push(fragment);
    return fragment;
  }

  /** The corpus has another salt from now on; its texts stay. @returns what had the old one */
  rotate(corpus: Corpus): readonly Fragment[] {
    const before = this.live.filter((fragment) => fragment.corpus === corpus);
    corpus.epoch += 1;
    this.#client.run("update corpora set salt_epoch = ? where id = ?", [corpus.epoch, corpus.id]);
    for (const fragment of before) {
      fragment.isGone = true;
      this.#add(corpus, fragment.tokenIds);
    }
    return before;
  }

  /** @returns its texts */
  remove(corpus: Corpus): readonly Fragment[] {
    corpus.isGone = true;
    this.#client.run("update corpora set deleted_at = 1 where id = ?", [corpus.id]);
    return this.#gone((fragment) => fragment.corpus === corpus);
  }

  removeTenant(tenantId: TenantId): readonly Fragment[] {
    for (const corpus of this.corpora) corpus.isGone ||= corpus.tenantId === tenantId;
    this.#client.run("update tenants set status = 'deleting' where id = ?", [tenantId]);
    return this.#gone(({ corpus }) => corpus.tenantId === tenantId);
  }

  #gone(isMeant: (fragment: Fragment) => boolean): readonly Fragment[] {
    const gone = this.live.filter(isMeant);
    for (const fragment of gone) fragment.isGone = true;
    return gone;
  }
}

/** Whether a file is, byte for byte in each of its blocks, what the fake backend comes to for the object's tokens. */
export async function isWhole(
  file: ObjectFile,
  object: KvObject,
  bytes: Uint8Array,
  fragment: Fragment,
  shape: ObjectShape,
): Promise<boolean> {
  if (bytes.length !== file.sizes.fileBytes || !file.isFirstPage(bytes.subarray(0, 4_096))) return false;
  const states = statesOf(fragment.tokenIds);
  const openSegment = async (segment: number): Promise<Uint8Array | undefined> => {
    const place = file.placeOf(segment);
    const plain = new Uint8Array(place.bytes);
    const sealed = bytes.subarray(place.at, place.at + place.span);
    return (await file.open(segment, sealed, plain, () => undefined)) ? plain : undefined;
  };
  const head = await openSegment(0);
  if (head === undefined || file.tokensOf(head) === undefined) return false;
  for (let index = 0; index < file.sizes.blockCount; index++) {
    const words = new Int32Array(3 * shape.blockTokens);
    const first = object.position + index * shape.blockTokens;
    for (let at = 0; at < shape.blockTokens && first + at < object.position + object.tokenCount; at++) {
      const token = first + at;
      words[at] = states[token];
      words[shape.blockTokens + at] = fragment.tokenIds[token];
      words[2 * shape.blockTokens + at] = token;
    }
    const plain = await openSegment(index + 1);
    if (plain === undefined || !Buffer.from(words.buffer).equals(plain)) return false;
  }
  return true;
}

/** States of a chain that sees nothing but itself. */
function statesOf(tokenIds: Int32Array): readonly number[] {
  const states: number[] = [];
  tokenIds.forEach((tokenId, position) => {
    const sum = states.reduce((seen, state, at) => (seen + seenTerm(state, position - at)) | 0, 0);
    states.push(tokenState(tokenId, position, sum));
  });
  return states;
}
