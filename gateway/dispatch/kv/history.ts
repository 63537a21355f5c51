/**
 * Remembers why KV that a request looks for may be gone: which blocks workers held and lost, and under which key the
 * same text stood in a tenant's earlier prompts. Memory is bounded: the oldest entries are forgotten, and then look as
 * if they had never been. No tenant learns of another's text: keys are made with their owner's salt, and texts are kept
 * by tenant, under secret names.
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
  /** Most blocks that are gone, and most texts of prompts, that are remembered. */
  readonly maxGone: number;
  readonly maxTexts: number;
}

export class KvHistory {
  readonly #gone: LRUCache<BlockKey, GoneReason>;
  /** Key of the first block of a tenant's run of this text. */
  readonly #texts: TenantLru<BlockKey>;
  readonly #names = new SecretNames();

  constructor({ maxGone, maxTexts }: KvHistoryOptions) {
    this.#gone = new LRUCache({ max: maxGone });
    this.#texts = new TenantLru({ maxSize: maxTexts });
  }

  /** Applies what a worker reports of its blocks. */
  apply(events: readonly KvEvent[]): void {
    for (const event of events) {
      if (event.type === "stored") for (const key of event.blockKeys) this.#gone.delete(key);
      if (event.type !== "removed") continue;
      for (const key of event.blockKeys) if (!this.#gone.has(key)) this.#gone.set(key, "evicted");
    }
  }

  /** To be called when workers are told to forget these blocks. */
  removed(blockKeys: Iterable<BlockKey>): void {
    for (const key of blockKeys) this.#gone.set(key, "removed");
  }

  /** To be called when a worker that held these blocks has ended. */
  lost(blockKeys: Iterable<BlockKey>): void {
    for (const key of blockKeys) this.#gone.set(key, "worker_lost");
  }

  /** Why a block is gone. undefined: it is there, never was, or went so long ago that it is forgotten. */
  goneFor(key: BlockKey): GoneReason | undefined {
    return this.#gone.peek(key);
  }

  /** Notes the runs of a tenant's prompt that is about to be computed. */
  noteTexts(tenantId: WorkOwner, runs: readonly PlanRun[], blockTokens: number): void {
    for (const run of runs) {
      const [key] = run.blockKeys;
      if (key !== undefined) this.#texts.set(tenantId, this.#nameOf(run, blockTokens), key);
    }
  }

  /** The key, if it was another one, that a run of this tenant with the same text in its first block had last. */
  formerKey(tenantId: WorkOwner, run: PlanRun, blockTokens: number): BlockKey | undefined {
    const former = this.#texts.peek(tenantId, this.#nameOf(run, blockTokens));
    return former === run.blockKeys[0] ? undefined : former;
  }

  /** Secret name of a run: of its kind and of the tokens of its first block. */
  #nameOf({ kind, tokenIds }: PlanRun, blockTokens: number): string {
    const { buffer, byteOffset, BYTES_PER_ELEMENT } = tokenIds;
    const tokenCount = Math.min(blockTokens, tokenIds.length);
    return this.#names.of(kind, new Uint8Array(buffer, byteOffset, tokenCount * BYTES_PER_ELEMENT));
  }
}
