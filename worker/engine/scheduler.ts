/**
 * Who computes what in the next step: decodes first, then pieces of the prompts of running requests in
 * order of admission, then new requests first come first served, all under one token budget.
 *
 * Memory: at admission a request refers to the blocks it hits and *reserves* the rest of its prompt; blocks
 * are taken when a piece needs them, so nothing cached is evicted early. reserved <= available at all times.
 * Decode blocks are taken on demand; when none is left the request admitted last is preempted: it gives all
 * back, keeps its tokens and waits in front. The oldest request is never preempted for another, so it ends.
 *
 * Sharing: a block is computed once. A key that is being computed in this step is *claimed*; a run that needs
 * it too waits a step and finds it, whoever computed it and whatever became of that request.
 */

import type { BlockPool } from "../cache/block-pool.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import type { BlockId, BlockKey } from "../contract/units.ts";
import type { Request } from "./request.ts";
import type { Run } from "./run.ts";

export interface EngineLimits {
  readonly maxRunningRequests: number;
  readonly maxWaitingRequests: number;
  /** Rows of one step, prefill and decode together. */
  readonly stepTokens: number;
}

/** The next `rowCount` tokens of a run, computed in one step. */
export interface Piece {
  readonly request: Request;
  readonly run: Run;
  readonly rowCount: number;
  /** The piece ends with the open run's last token. */
  readonly wantsLogits: boolean;
}

export interface StepPlan {
  readonly pieces: readonly Piece[];
  /** Requests that the whole pool cannot hold any more: they end here. */
  readonly outgrown: readonly Request[];
}

interface StepDraft {
  readonly pieces: Piece[];
  readonly outgrown: Request[];
  budget: number;
}

export class Scheduler {
  readonly waiting: Request[] = [];
  /** In order of admission. */
  readonly running: Request[] = [];
  preemptions = 0;
  /** Prompt tokens looked up at first admission, and those of them that were found. */
  queriedTokens = 0;
  hitTokens = 0;

  private readonly pool: BlockPool;
  private readonly cache: PrefixCache;
  private readonly limits: EngineLimits;
  private readonly blockTokens: number;
  private readonly clock: () => number;
  private readonly claimed = new Set<BlockKey>();

  constructor(pool: BlockPool, cache: PrefixCache, limits: EngineLimits, blockTokens: number, clock: () => number) {
    if (limits.stepTokens < limits.maxRunningRequests) {
      throw new RangeError(
        `stepTokens (${limits.stepTokens}) is below maxRunningRequests (${limits.maxRunningRequests})`,
      );
    }
    this.pool = pool;
    this.cache = cache;
    this.limits = limits;
    this.blockTokens = blockTokens;
    this.clock = clock;
  }

  schedule(): StepPlan {
    const step: StepDraft = { pieces: [], outgrown: [], budget: this.limits.stepTokens };
    this.claimed.clear();
    const preempted = this.scheduleDecodes(step);
    for (const request of this.running) this.schedulePrefill(request, step);
    if (!preempted || this.running.length === 0) this.admit(step);
    return step;
  }

  /** Takes the request out, wherever it is, and gives its blocks back. */
  remove(request: Request): void {
    for (const list of [this.running, this.waiting]) {
      const at = list.indexOf(request);
      if (at >= 0) list.splice(at, 1);
    }
    this.releaseBlocks(request);
  }

  /** Blocks promised to running requests and not taken yet. */
  get reservedBlocks(): number {
    return this.running.reduce((sum, request) => sum + request.reservedBlocks, 0);
  }

  /** @returns whether a request was preempted. */
  private scheduleDecodes(step: StepDraft): boolean {
    const before = this.preemptions;
    // Preemption takes from the end of `running`, so requests seen already keep their pieces.
    for (let i = 0; i < this.running.length; i++) {
      const request = this.running[i];
      const run = request.openRun;
      if (!request.decoding || run === undefined) continue;
      if (run.blocks.length < run.blockCount && !this.makeRoom(request)) continue;
      this.coverWithBlocks(run, run.tokenCount);
      step.pieces.push({ request, run, rowCount: 1, wantsLogits: true });
      step.budget -= 1;
    }
    return this.preemptions > before;
  }

  /** Preempts from the end until one block is free for `request`; false when that was `request` itself. */
  private makeRoom(request: Request): boolean {
    while (this.pool.availableCount - this.reservedBlocks < 1) {
      const victim = this.running.at(-1) ?? request;
      this.remove(victim);
      victim.decoding = false;
      this.waiting.unshift(victim);
      this.preemptions += 1;
      if (victim === request) return false;
    }
    return true;
  }

  private schedulePrefill(request: Request, step: StepDraft): void {
    if (request.decoding) return;
    for (const run of request.runs) {
      if (step.budget === 0) return;
      if (run.complete || !mayCompute(run, request)) continue;
      this.adopt(run, request, run.residentBlocks(this.cache));
      if (run.complete) continue;
      const rowCount = Math.min(run.tokenCount - run.computedTokens, step.budget);
      const end = run.computedTokens + rowCount;
      if (!this.claim(run, end)) continue;
      request.reservedBlocks -= this.coverWithBlocks(run, end);
      step.pieces.push({ request, run, rowCount, wantsLogits: run.open && end === run.tokenCount });
      step.budget -= rowCount;
    }
  }

  private admit(step: StepDraft): void {
    while (step.budget > 0 && this.running.length < this.limits.maxRunningRequests) {
      const request = this.waiting[0];
      if (request === undefined) return;
      if (request.blockCount > this.pool.blockCount) {
        this.waiting.shift();
        step.outgrown.push(request);
        continue;
      }
      if (!this.tryAdmit(request)) return;
      this.waiting.shift();
      this.schedulePrefill(request, step);
    }
  }

  private tryAdmit(request: Request): boolean {
    const required = request.blockCount;
    const found = request.runs.map((run) => run.residentBlocks(this.cache));
    let foundLive = 0;
    for (const blocks of found) {
      for (const blockId of blocks) if (this.pool.referenceCount(blockId) > 0) foundLive += 1;
    }
    // Free blocks that are hit leave the free list too, so only live ones lower what is needed.
    if (required - foundLive > this.pool.availableCount - this.reservedBlocks) return false;
    if (request.markAdmitted(this.clock())) {
      for (const run of request.runs) if (run.keyed) this.queriedTokens += run.promptTokens;
    }
    request.reservedBlocks = required;
    for (const [index, run] of request.runs.entries()) this.adopt(run, request, found[index]);
    this.running.push(request);
    return true;
  }

  private adopt(run: Run, request: Request, found: readonly BlockId[]): void {
    if (found.length === 0) return;
    this.hitTokens += run.adopt(found, this.cache);
    request.reservedBlocks -= found.length;
  }

  /** Claims the keys of the blocks up to token `end`; false when the first is claimed by another run. */
  private claim(run: Run, end: number): boolean {
    const first = Math.floor(run.computedTokens / this.blockTokens);
    const firstKey = run.keyAt(first);
    const atBoundary = run.computedTokens === first * this.blockTokens;
    if (atBoundary && firstKey !== undefined && this.claimed.has(firstKey)) return false;
    for (let index = first; index * this.blockTokens < end; index++) {
      const key = run.keyAt(index);
      if (key !== undefined) this.claimed.add(key);
    }
    return true;
  }

  /** Takes blocks until tokens [0, end) have one; they are reserved or there is room. @returns how many. */
  private coverWithBlocks(run: Run, end: number): number {
    const before = run.blocks.length;
    while (run.blocks.length * this.blockTokens < end) {
      const blockId = this.cache.allocate();
      if (blockId === undefined) throw new Error("no block is free although one was reserved");
      run.blocks.push(blockId);
    }
    return run.blocks.length - before;
  }

  private releaseBlocks(request: Request): void {
    for (let i = request.runs.length - 1; i >= 0; i--) request.runs[i].release(this.cache);
    request.reservedBlocks = 0;
  }
}

/** A run needs the KV of all it sees; the open run goes last, so that a decoding request has no other work. */
function mayCompute(run: Run, request: Request): boolean {
  if (run.open) return request.runs.every((other) => other === run || other.complete);
  return run.plan.sees.every((segment) => request.runs[segment.run].complete);
}
