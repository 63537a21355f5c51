/**
 * Who computes what in the next step: decodes first, then new requests are admitted first come first served,
 * then pieces of prompts, all under one token budget. Half of what decodes leave is for the prompt admitted
 * first, so it ends; the rest goes to the prompt with the fewest missing tokens, so that a question over
 * prepared text does not wait behind a long cold one. Beside decodes prompts get less, so that streams flow.
 *
 * Memory: at admission a request refers to the blocks it hits and *reserves* the rest of its prompt; blocks
 * are taken when a piece needs them, so nothing cached is evicted early. reserved <= available at all times.
 * A chain that is closed after its last token is a prompt again: its end reserves what it lacks.
 * Decode blocks are taken on demand; when none is left the request admitted last is preempted: it gives all
 * back, keeps its tokens and waits in front. The oldest request is never preempted for another, so it ends.
 *
 * Sharing: a block is computed once. A key that is being computed in this step is *claimed*; a run that needs
 * it too waits a step and finds it, whoever computed it and whatever became of that request. A blended run is
 * found when all of it is done, so it claims its blocks until then.
 */

import type { BlockPool } from "../cache/block-pool.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import { limits as planLimits } from "../contract/limits.ts";
import type { BlockId } from "../contract/units.ts";
import { canScheduleAhead } from "./in-flight.ts";
import type { EngineLimits } from "./limits.ts";
import type { Relocation } from "./relocate.ts";
import type { Request } from "./request.ts";
import type { Run } from "./run.ts";
import { StepDraft, type StepPlan } from "./step.ts";

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
  private readonly relocation: Relocation | undefined;

  constructor(
    pool: BlockPool,
    cache: PrefixCache,
    limits: EngineLimits,
    blockTokens: number,
    clock: () => number,
    relocation?: Relocation,
  ) {
    if (limits.stepTokens < limits.maxRunningRequests) {
      throw new RangeError(
        `stepTokens (${limits.stepTokens}) is below maxRunningRequests (${limits.maxRunningRequests})`,
      );
    }
    if (!(limits.stepReads > planLimits.maxSegmentsPerRun)) {
      throw new RangeError(`stepReads is ${limits.stepReads}, not more than a run's segments`);
    }
    if (!(limits.prefillTokensBesideDecodes >= 1)) {
      throw new RangeError(`prefillTokensBesideDecodes is ${limits.prefillTokensBesideDecodes}, not 1 or more`);
    }
    this.pool = pool;
    this.cache = cache;
    this.limits = limits;
    this.blockTokens = blockTokens;
    this.clock = clock;
    this.relocation = relocation;
  }

  /** @param before the step before this one, when it is still in flight (in-flight.ts) */
  schedule(before?: StepPlan): StepPlan {
    const step = new StepDraft(this.limits, before?.claimed);
    const preempted = this.scheduleDecodes(step);
    const decodes = step.pieces.size;
    const { stepTokens, prefillTokensBesideDecodes } = this.limits;
    step.budget = decodes === 0 ? stepTokens : Math.min(stepTokens - decodes, prefillTokensBesideDecodes);
    this.adoptResident();
    if (!preempted || this.running.length === 0) this.admit(step);
    this.schedulePrefills(step);
    return step.plan(this.relocation?.takeMoves());
  }

  /** Whether `schedule` may be called while a step is in flight. */
  canScheduleAhead(): boolean {
    const admissible = this.waiting.slice(0, this.limits.maxRunningRequests - this.running.length);
    if (this.relocation?.mayMove(this.running, admissible) === true) return false;
    return canScheduleAhead(this.running, admissible, this.pool.availableCount - this.reservedBlocks);
  }

  /** Takes the request out, wherever it is. Its blocks stay its own until `releaseBlocks`. */
  remove(request: Request): void {
    for (const list of [this.running, this.waiting]) {
      const at = list.indexOf(request);
      if (at >= 0) list.splice(at, 1);
    }
    request.reservedBlocks = 0;
  }

  releaseBlocks(request: Request): void {
    for (let i = request.runs.length - 1; i >= 0; i--) request.runs[i].release(this.cache);
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
      if (!request.decoding || run === undefined || request.drawsLastToken) continue;
      const lacking = run.blockCount - run.blocks.length;
      if (!this.makeRoom(request, lacking)) continue;
      if (request.closingReason !== undefined) {
        request.decoding = false;
        request.reservedBlocks = lacking;
        continue;
      }
      this.coverWithBlocks(run, run.tokenCount);
      step.pieces.set(run, { request, run, firstToken: run.computedTokens, rowCount: 1, wantsLogits: true });
    }
    return this.preemptions > before;
  }

  /** Preempts from the end until so many blocks are free for `request`; false when that was `request` itself. */
  private makeRoom(request: Request, blockCount: number): boolean {
    while (blockCount > 0 && this.pool.availableCount - this.reservedBlocks < blockCount) {
      const victim = this.running.at(-1) ?? request;
      this.remove(victim);
      this.releaseBlocks(victim);
      victim.decoding = false;
      this.waiting.unshift(victim);
      this.preemptions += 1;
      if (victim === request) return false;
    }
    return true;
  }

  private schedulePrefills(step: StepDraft): void {
    const prefilling = this.running.filter((request) => !request.decoding);
    const oldest = prefilling.at(0);
    if (oldest === undefined) return;
    for (const { runs } of prefilling) {
      for (const run of runs) if (run.blending !== undefined) this.claimRest(run, step);
    }
    this.schedulePrefill(oldest, step, Math.ceil(step.budget / 2));
    const missingTokens = new Map(prefilling.map((request) => [request, request.missingTokens]));
    const order = (a: Request, b: Request): number => (missingTokens.get(a) ?? 0) - (missingTokens.get(b) ?? 0);
    for (const request of prefilling.toSorted(order)) this.schedulePrefill(request, step, step.budget);
  }

  /** Up to `maxRows` more rows of a request's prompt; pieces it has in this step grow. */
  private schedulePrefill(request: Request, step: StepDraft, maxRows: number): void {
    let rowsLeft = maxRows;
    for (const run of request.runs) {
      if (rowsLeft === 0) return;
      if (step.covers(run) || !step.mayCompute(run, request)) continue;
      if (run.plan.blend !== undefined) {
        rowsLeft -= this.scheduleBlend(run, request, step, rowsLeft);
        continue;
      }
      const rowsBefore = step.pieces.get(run)?.rowCount ?? 0;
      const start = run.computedTokens + rowsBefore;
      const rows = step.rowsFor(run, Math.min(run.tokenCount - start, rowsLeft));
      const end = this.claim(run, step, start, start + rows);
      if (end === start) continue;
      request.reservedBlocks -= this.coverWithBlocks(run, end);
      const wantsLogits = run.open && end === run.tokenCount;
      const { computedTokens: firstToken } = run;
      step.pieces.set(run, { request, run, firstToken, rowCount: end - firstToken, wantsLogits });
      step.takeRows(run, end - start);
      rowsLeft -= end - start;
    }
  }

  /** The next of a blended run: its copies, then probes, then up to `maxRows` selected tokens. Answers how many. */
  private scheduleBlend(run: Run, request: Request, step: StepDraft, maxRows: number): number {
    let { blending } = run;
    if (blending === undefined) {
      if (!this.claimRest(run, step)) return 0;
      request.reservedBlocks -= this.coverWithBlocks(run, run.tokenCount);
      blending = run.beginBlending();
      step.copies.push({ request, run });
    }
    if (blending.unprobedTokens > 0) {
      const probe = step.probes.get(run) ?? { rowCount: 0 };
      const more = step.probesFor(run, blending.unprobedTokens - probe.rowCount);
      const rowCount = probe.rowCount + more;
      step.takeProbes(run, more);
      if (more > 0)
        step.probes.set(run, { request, run, firstToken: blending.nextProbe, rowCount, wantsLogits: false });
      return 0;
    }
    const before = step.recomputed.get(run)?.rowCount ?? 0;
    const rows = step.rowsFor(run, Math.min(blending.missingTokens - before, maxRows));
    if (rows === 0) return 0;
    step.recomputed.set(run, { request, rowCount: before + rows });
    step.takeRows(run, rows);
    return rows;
  }

  private admit(step: StepDraft): void {
    while (this.running.length < this.limits.maxRunningRequests) {
      const request = this.waiting[0];
      if (request === undefined) return;
      if (request.blockCount > this.pool.blockCount) {
        this.waiting.shift();
        step.outgrown.push(request);
        continue;
      }
      if (!this.tryAdmit(request)) return;
      this.waiting.shift();
    }
  }

  private tryAdmit(request: Request): boolean {
    const required = request.blockCount;
    const found = request.runs.map((run) => run.residentBlocks(this.cache));
    let foundLive = 0;
    for (const [index, run] of request.runs.entries()) {
      for (const blockId of found[index]) if (this.isShared(blockId, run)) foundLive += 1;
    }
    // Free blocks that are hit leave the free list too, so only live ones lower what is needed.
    if (required - foundLive > this.pool.availableCount - this.reservedBlocks) return false;
    if (request.markAdmitted(this.clock())) {
      for (const run of request.runs) if (run.keyed) this.queriedTokens += run.promptTokens;
    }
    request.reservedBlocks = required;
    for (const [index, run] of request.runs.entries()) this.adopt(run, request, found[index]);
    this.relocation?.settleAll(request, found);
    this.running.push(request);
    return true;
  }

  /** What others computed since the last step: before admission, since it frees what was reserved for it. */
  private adoptResident(): void {
    for (const request of this.running) {
      if (request.decoding) continue;
      for (const run of request.runs) {
        const found = run.residentBlocks(this.cache);
        this.adopt(run, request, found);
        this.relocation?.settle(run, found.length);
      }
    }
  }

  /** A block that is in use already, and where the run wants it. */
  private isShared(blockId: BlockId, run: Run): boolean {
    return this.relocation?.isShared(blockId, run) ?? this.pool.isLive(blockId);
  }

  private adopt(run: Run, request: Request, found: readonly BlockId[]): void {
    if (found.length === 0) return;
    this.hitTokens += run.adopt(found, this.cache);
    request.reservedBlocks -= found.length;
  }

  /**
   * Claims the keys of the blocks of tokens [start, end). Answers where that ends: before the first block that
   * another run claims or has computed. A block that was begun in an earlier step is the run's own in any case.
   */
  private claim(run: Run, step: StepDraft, start: number, end: number): number {
    for (let index = Math.floor(start / this.blockTokens); index * this.blockTokens < end; index++) {
      const key = run.keyAt(index);
      if (key === undefined) continue;
      const others = step.isClaimed(key) || run.isResident(index, this.cache);
      if (others && index * this.blockTokens >= start) return index * this.blockTokens;
      step.claimed.add(key);
    }
    return end;
  }

  /** Claims all that a blended run lacks; false when another run claims the first of it. */
  private claimRest(run: Run, step: StepDraft): boolean {
    const first = Math.floor(run.computedTokens / this.blockTokens);
    const keys = Array.from({ length: run.blockCount - first }, (_, i) => run.keyAt(first + i));
    if (keys[0] !== undefined && step.isClaimed(keys[0])) return false;
    for (const key of keys) if (key !== undefined) step.claimed.add(key);
    return true;
  }

  /** Takes blocks until tokens [0, end) have one; they are reserved or there is room. @returns how many. */
  private coverWithBlocks(run: Run, end: number): number {
    const before = run.blocks.length;
    while (run.blocks.length * this.blockTokens < end) {
      const blockId = this.cache.allocate(run.owner);
      if (blockId === undefined) throw new Error("no block is free although one was reserved");
      run.blocks.push(blockId);
    }
    return run.blocks.length - before;
  }
}
