/**
 * Fragments that requests read are written to files when they are read for the second time. Most are read once: writing
 * all of them would wear disks out for nothing. A caller who asks for its prompt to be retained for an hour or longer has
 * its own fragments written at once. What does not fit into the line of files to be written is written at a later use.
 */
import { LRUCache } from "lru-cache";
import { findCorpusAnyState } from "../../../db/corpora.ts";
import { notePrepared } from "../../../db/fragments.ts";
import type { FragmentId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import { retentionOf } from "../../../worker/contract/owners.ts";
import { messageOf } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { yieldToRequests } from "../../base/pace.ts";
import { corpusLimits } from "../base/limits.ts";
import type { RequestUse, SpanPort, UsedFragment } from "../base/ports.ts";

interface UsedParts {
  readonly db: Db;
  readonly spans: Pick<SpanPort, "isReady" | "keepUsed">;
  readonly log: Log;
}

interface Waiting {
  readonly fragment: UsedFragment;
  readonly use: RequestUse;
  /** The fragment was read before. */
  readonly isAgain: boolean;
}

/** How many fragments are written at a time. */
const lanes = 8;

export class UsedFragments {
  readonly #parts: UsedParts;
  /** Fragments that were read before; those that were read last are remembered. */
  readonly #read = new LRUCache<FragmentId, true>({ max: corpusLimits.readFragments });

  /** Fragments to be written; what finds no place here is written at a later use. */
  readonly #line: Waiting[] = [];
  #laneCount = 0;

  constructor(parts: UsedParts) {
    this.#parts = parts;
  }

  /** A request has ended whose prompt held these fragments, each once. Nobody waits for the files. */
  note(fragments: readonly UsedFragment[], use: RequestUse): void {
    if (!this.#parts.spans.isReady) return;
    const isLong = use.retention !== undefined && retentionOf[use.retention] >= retentionOf["1h"];
    for (const fragment of fragments) {
      const isAgain = this.#read.has(fragment.id);
      this.#read.set(fragment.id, true);
      if (!(isAgain || isLong) || this.#line.length >= corpusLimits.usedFragmentsInLine) continue;
      this.#line.push({ fragment, use, isAgain });
    }
    for (; this.#laneCount < Math.min(lanes, this.#line.length); this.#laneCount++) void this.#run();
  }

  /** A request may name thousands of fragments, so one is looked at in each turn of the event loop, and few are written at a time. */
  async #run(): Promise<void> {
    for (;;) {
      await yieldToRequests();
      const next = this.#line.shift();
      if (next === undefined) break;
      try {
        // A caller's wish holds for what is its own.
        if (next.isAgain || this.#isOwn(next)) await this.#keep(next.fragment, next.use.readAtMs);
      } catch (error) {
        this.#parts.log("warn", "KV that was used is not kept in files", { reason: messageOf(error) });
      }
    }
    this.#laneCount -= 1;
  }

  #isOwn({ fragment, use }: Waiting): boolean {
    return findCorpusAnyState(this.#parts.db, fragment.corpusId)?.tenantId === use.tenantId;
  }

  async #keep(fragment: UsedFragment, readAtMs: number): Promise<void> {
    const { id } = fragment;
    const there = await this.#parts.spans.keepUsed(fragment, readAtMs);
    // A start finds by this the texts of what is in files.
    if (there !== undefined) notePrepared(this.#parts.db, id, there.spanKey, there.worker, Date.now());
  }
}
