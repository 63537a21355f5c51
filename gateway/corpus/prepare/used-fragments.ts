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
import { corpusLimits } from "../base/limits.ts";
import type { RequestUse, SpanPort, UsedFragment } from "../base/ports.ts";

interface UsedParts {
  readonly db: Db;
  readonly spans: Pick<SpanPort, "isReady" | "keepUsed">;
  readonly log: Log;
}

export class UsedFragments {
  readonly #parts: UsedParts;
  /** Fragments that were read before; those that were read last are remembered. */
  readonly #read = new LRUCache<FragmentId, true>({ max: corpusLimits.readFragments });

  constructor(parts: UsedParts) {
    this.#parts = parts;
  }

  /** A request has ended whose prompt held these fragments, each once. Nobody waits for the files. */
  note(fragments: readonly UsedFragment[], { tenantId, retention, readAtMs }: RequestUse): void {
    const { db, spans, log } = this.#parts;
    if (!spans.isReady) return;
    const isLong = retention !== undefined && retentionOf[retention] >= retentionOf["1h"];
    // A caller's wish holds for what is its own.
    const isOwn = ({ corpusId }: UsedFragment): boolean => findCorpusAnyState(db, corpusId)?.tenantId === tenantId;
    for (const fragment of fragments) {
      const isAgain = this.#read.has(fragment.id);
      this.#read.set(fragment.id, true);
      if (!isAgain && !(isLong && isOwn(fragment))) continue;
      this.#keep(fragment, readAtMs).catch((error: unknown) => {
        log("warn", "KV that was used is not kept in files", { reason: messageOf(error) });
      });
    }
  }

  async #keep(fragment: UsedFragment, readAtMs: number): Promise<void> {
    const { id } = fragment;
    const there = await this.#parts.spans.keepUsed(fragment, readAtMs);
    // A start finds by this the texts of what is in files.
    if (there !== undefined) notePrepared(this.#parts.db, id, there.spanKey, there.worker, Date.now());
  }
}
