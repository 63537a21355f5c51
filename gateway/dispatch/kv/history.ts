/**
 * What became of KV that a request did not find: which blocks workers had and lost, and under which key a tenant's
 * prompts had the same text before. Bounded: what went longest ago is forgotten, and then looks as if it never was.
 * Nobody learns of another tenant's text: a key is made with its owner's salt, and texts are kept by tenant, under
 * names that nobody can foresee.
 */

import { LRUCache } from "lru-cache";
import type { KvEvent, PlanRun } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { SecretNames } from "../../base/secret-names.ts";
import { TenantLru } from "../../base/tenant-lru.ts";
import type { MissReason } from "../request/miss-report.ts";
import type { WorkOwner } from "../request/request.ts";

type GoneReason = Extract<MissReason, "evicted" | "removed" | "worker_lost">;

export interface KvHistoryOptions {
  /** Blocks that are gone, and texts of prompts. */
  readonly maxGone: number;
  readonly maxTexts: number;
}

export class KvHistory {
  readonly #gone: LRUCache<BlockKey, GoneReason>;
  /** Key of the first block that a tenant's run of this text had. */
  readonly #texts: TenantLru<BlockKey>;
  readonly #names = new SecretNames();

  constructor({ maxGone, maxTexts }: KvHistoryOptions) {
    this.#gone = new LRUCache({ max: maxGone });
    this.#texts = new TenantLru({ maxSize: maxTexts });
  }

  /** What a worker tells of its blocks. */
  apply(events: readonly KvEvent[]): void {
    for (const event of events) {
      if (event.type === "stored") for (const key of event.blockKeys) this.#gone.delete(key);
      if (event.type !== "removed") continue;
      for (const key of event.blockKeys) if (!this.#gone.has(key)) this.#gone.set(key, "evicted");
    }
  }

  /** Workers that hold these blocks are told to forget them. */
  removed(blockKeys: Iterable<BlockKey>): void {
    for (const key of blockKeys) this.#gone.set(key, "removed");
  }

  /** A worker that held these blocks has ended. */
  lost(blockKeys: Iterable<BlockKey>): void {
    for (const key of blockKeys) this.#gone.set(key, "worker_lost");
  }

  /** undefined: it is there, never was, or went so long ago that it is forgotten. */
  goneFor(key: BlockKey): GoneReason | undefined {
    return this.#gone.peek(key);
  }

  /** A tenant's prompt has these runs, which are about to be computed. */
  noteTexts(tenantId: WorkOwner, runs: readonly PlanRun[], blockTokens: number): void {
    for (const run of runs) {
      const [key] = run.blockKeys;
      if (key !== undefined) this.#texts.set(tenantId, this.#nameOf(run, blockTokens), key);
    }
  }

  /** The other key that a run of this tenant with the same first block of text had the last time. */
  formerKey(tenantId: WorkOwner, run: PlanRun, blockTokens: number): BlockKey | undefined {
    const former = this.#texts.peek(tenantId, this.#nameOf(run, blockTokens));
    return former === run.blockKeys[0] ? undefined : former;
  }

  /** Of its kind and of the tokens of its first block. */
  #nameOf({ kind, tokenIds }: PlanRun, blockTokens: number): string {
    const { buffer, byteOffset, BYTES_PER_ELEMENT } = tokenIds;
    const tokenCount = Math.min(blockTokens, tokenIds.length);
    return this.#names.of(kind, new Uint8Array(buffer, byteOffset, tokenCount * BYTES_PER_ELEMENT));
  }
}
