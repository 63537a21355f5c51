/**
 * Pinned fragments. A worker evicts them only after all other KV of their owner, as long as the owner's quota has space
 * for them. A worker that lost one computes it again. The database says what is pinned; one loop tells the workers,
 * again and again.
 */
import { corpusFragment } from "../../../db/fragments.ts";
import { parseId, type TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import { type PinnedFragment, putPin, removePin, sumPins, walkPins } from "../../../db/pins.ts";
import type { KvTier } from "../../../worker/contract/tiers.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { BackgroundLoop } from "../../background/background-loop.ts";
import { ApiError } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { Pace, yieldToRequests } from "../../base/pace.ts";
import type { CorpusService } from "../base/corpora.ts";
import { corpusLimits } from "../base/limits.ts";
import type { CorpusSaltOf, SpanPort, SpanText } from "../base/ports.ts";
import type { FragmentFacts, FragmentService } from "./fragments.ts";
import { requireTier } from "./prepare.ts";

const pinsPerPiece = 64;

export interface PinParts {
  readonly db: Db;
  readonly corpora: CorpusService;
  readonly fragments: FragmentService;
  readonly spans: SpanPort;
  readonly corpusSalt: CorpusSaltOf;
  readonly log: Log;
}

export class PinService {
  readonly #parts: PinParts;
  readonly #loop: BackgroundLoop;

  constructor(parts: PinParts) {
    this.#parts = parts;
    this.#loop = new BackgroundLoop("pinning", parts.log, (signal) => this.#tell(signal));
  }

  /** Call when the pins, or what the workers hold of them, may have changed. */
  wake(): void {
    this.#loop.wake();
  }

  idle(): Promise<void> {
    return this.#loop.idle();
  }

  stop(): Promise<void> {
    return this.#loop.stop();
  }

  /**
   * Pins a fragment: its KV is brought to the tier if it is not there, and goes last. The call may be repeated.
   * @throws ApiError not_found, quota_exceeded, not_ready, invalid_value
   */
  pin(tenantId: TenantId, rawId: string, tier: KvTier = "device"): FragmentFacts {
    const { db, spans } = this.#parts;
    requireTier(spans, tier, "tier");
    const { seq, facts } = this.#require(tenantId, rawId);
    if (facts.span === undefined) throw new ApiError("not_ready", { retryAfterS: 2 });
    const { blockCount } = facts.span;
    if (facts.row.pinnedTier !== tier) {
      const { fragments, blocks } = sumPins(db, tenantId, tier, seq);
      const most = spans.mostPinnedBlocks(tenantId, tier);
      if (fragments >= corpusLimits.maxPinsPerTenant || blocks + blockCount > most) {
        const pinned = `The tenant has ${fragments} fragments of ${blocks} blocks pinned in "${tier}"`;
        throw new ApiError("quota_exceeded", { message: `${pinned}, and may pin ${most} blocks.` });
      }
    }
    putPin(db, { fragmentSeq: seq, tenantId, blocks: blockCount, tier });
    this.wake();
    return this.#facts(tenantId, rawId);
  }

  /** Unpins a fragment; the call may be repeated. @throws ApiError not_found */
  unpin(tenantId: TenantId, rawId: string): FragmentFacts {
    const { seq } = this.#require(tenantId, rawId);
    removePin(this.#parts.db, seq);
    this.wake();
    return this.#facts(tenantId, rawId);
  }

  /**
   * Ends the fragment's pin, and makes all workers forget its KV and what was computed from it.
   * @throws ApiError not_found
   */
  evict(tenantId: TenantId, rawId: string): FragmentFacts {
    const { seq, span } = this.#require(tenantId, rawId);
    removePin(this.#parts.db, seq);
    const { spans } = this.#parts;
    if (spans.isReady) spans.evict(spans.lowerSpan(span).blockKeys, span.salt);
    // Its keys are not known, so all files of its corpus go.
    else spans.evictCorpora([span.salt]);
    this.wake();
    return this.#facts(tenantId, rawId);
  }

  #require(tenantId: TenantId, rawId: string) {
    const { db, corpora, fragments } = this.#parts;
    const id = parseId("fragment", rawId);
    const found = id === undefined ? undefined : corpusFragment(db, id);
    if (found === undefined) throw new ApiError("not_found");
    const corpus = corpora.require(tenantId, found.corpusId, "own");
    const facts = fragments.factsOf(corpus, found.row);
    const span: SpanText = { id: found.row.id, text: found.row.text, salt: corpora.saltOf(corpus) };
    return { seq: found.row.seq, facts, span };
  }

  #facts(tenantId: TenantId, rawId: string): FragmentFacts {
    return this.#require(tenantId, rawId).facts;
  }

  /** Tells the workers what is pinned, and makes them compute what they do not hold of it. */
  async #tell(signal: AbortSignal): Promise<void> {
    const { db, spans } = this.#parts;
    // The first worker that becomes ready wakes this loop again.
    if (!spans.isReady) return;
    const readAtMs = performance.now();
    const [tenants, below] = [new Map<BlockKey, string>(), new Map<BlockKey, string>()];
    const spanKeys = new Set<BlockKey>();
    const missing = new Map<TenantId, SpanText[]>();
    const pace = new Pace(yieldToRequests);
    let piece: readonly PinnedFragment[] = [];
    for (let afterSeq = 0; ; afterSeq = piece.at(-1)?.seq ?? afterSeq) {
      piece = walkPins(db, afterSeq, pinsPerPiece);
      if (piece.length === 0) break;
      for (const { id, text, corpusId, tenantId, saltEpoch, tier } of piece) {
        const span = { id, text, salt: this.#parts.corpusSalt(corpusId, saltEpoch, tenantId) };
        const { blockKeys } = spans.lowerSpan(span);
        const pinned = tier === "device" ? tenants : tier === "host" ? below : undefined;
        for (const key of pinned === undefined ? [] : blockKeys) pinned?.set(key, tenantId);
        const last = blockKeys.at(-1);
        if (last === undefined) continue;
        spanKeys.add(last);
        const isThere =
          pinned === undefined || spans.residentWorkers(last, tier === "host" ? tier : "device").length > 0;
        if (isThere && spans.isKept(last)) continue;
        missing.getOrInsertComputed(tenantId, () => []).push(span);
      }
      await pace.breathe();
      if (signal.aborted) return;
    }
    spans.setPinned(tenants, spanKeys, below);
    for (const [tenantId, theirs] of missing) {
      for await (const { kept } of spans.prepareSpans(theirs, signal, { readAtMs, tenantId, mayWait: false })) {
        await kept;
        if (signal.aborted) return;
      }
    }
  }
}
