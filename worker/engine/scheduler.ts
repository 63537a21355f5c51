/**
 * Who computes what in the next step: decodes first, then new requests are admitted first come first served,
 * then pieces of prompts (prefill.ts), all under one token budget. In a step with decodes prompts get fewer rows, so
 * that streams keep flowing. Decodes that did not fit into a step (step-budget.ts) come first in the next one.
 *
 * Memory: at admission a request refers to the blocks it hits and *reserves* the rest of its prompt; blocks
 * are taken when a piece needs them, so nothing cached is evicted early. reserved <= available at all times.
 * A chain that is closed after its last token is a prompt again, and reserves the blocks that its end still lacks.
 * Decode blocks are taken on demand. When none is left, the request admitted last is preempted: it gives all its blocks
 * back, keeps its tokens and waits in front. The oldest request is never preempted for another one, so it always ends.
 * Blocks that other tenants hold up to their floors cannot be taken by a tenant that has other requests (admission.ts).
 */

import type { BackendShape } from "../backend/backend.ts";
import type { BlockPool } from "../cache/block-pool.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import { type BlockId, blockCountForTokens } from "../contract/units.ts";
import type { Relocation } from "../relocation/relocation.ts";
import type { SparseDecoding } from "../sparse/sparse-decoding.ts";
import type { Tiers } from "../tiers/tiers.ts";
import { openBlocks, type Refusal, refusalOf, reservedBlocks, victimFor } from "./admission.ts";
import { Fairness } from "./fairness.ts";
import { canScheduleAhead } from "./in-flight.ts";
import type { EngineLimits } from "./limits.ts";
import { PrefillScheduler } from "./prefill.ts";
import type { Request } from "./request.ts";
import type { Run } from "./run.ts";
import { StepDraft, type StepPlan, type StepSizes } from "./step.ts";

export interface SchedulerParts {
  readonly pool: BlockPool;
  readonly cache: PrefixCache;
  readonly limits: EngineLimits;
  readonly shape: BackendShape;
  readonly clock: () => number;
  readonly relocation: Relocation | undefined;
  /** Absent: rows read all they see. */
  readonly sparse?: SparseDecoding | undefined;
  /** Blocks that come from files and from the host's memory. */
  readonly loads?: Pick<Tiers, "want" | "isComing">;
}

/** Requests that wait because of other tenants' floors: so many at most are passed over in one step. */
const maxPassed = 16;

export class Scheduler {
  readonly #waitingList: Request[] = [];
  readonly #runningList: Request[] = [];
  preemptions = 0;
  /** Prompt tokens looked up at first admission, and those of them that were found. */
  queriedTokens = 0;
  hitTokens = 0;
  /** Prompt tokens that were not found at first admission, and those of them that came from another tier since. */
  lackedTokens = 0;
  broughtTokens = 0;

  readonly #pool: BlockPool;
  readonly #cache: PrefixCache;
  readonly #limits: EngineLimits;
  readonly #sizes: StepSizes;
  readonly #clock: () => number;
  readonly #relocation: Relocation | undefined;
  readonly #sparse: SparseDecoding | undefined;
  readonly #loads: SchedulerParts["loads"];
  readonly #prefill: PrefillScheduler;
  readonly #fairness: Fairness;
  /** Requests whose tokens did not fit into the last step; the one that has waited longest is the first. */
  #leftOut: readonly Request[] = [];

  /** @throws RangeError when the limits contradict each other */
  constructor({ pool, cache, limits, shape, clock, relocation, sparse, loads }: SchedulerParts) {
    const { stepTokens, maxRunningRequests, stepListWords } = limits;
    if (stepTokens < maxRunningRequests) {
      throw new RangeError(`stepTokens (${stepTokens}) is below maxRunningRequests (${maxRunningRequests})`);
    }
    if (!(limits.prefillTokensBesideDecodes >= 1)) {
      throw new RangeError(`prefillTokensBesideDecodes is ${limits.prefillTokensBesideDecodes}, not 1 or more`);
    }
    const contextBlocks = blockCountForTokens(shape.contextTokens, shape.blockTokens);
    this.#pool = pool;
    this.#cache = cache;
    this.#limits = limits;
    this.#sizes = { stepTokens, listWords: stepListWords + maxRunningRequests * contextBlocks };
    this.#clock = clock;
    this.#relocation = relocation;
    this.#sparse = sparse;
    this.#loads = loads;
    this.#prefill = new PrefillScheduler(cache, shape.blockTokens);
    this.#fairness = new Fairness(limits, clock);
  }

  get waiting(): readonly Request[] {
    return this.#waitingList;
  }

  /** In order of admission. */
  get running(): readonly Request[] {
    return this.#runningList;
  }

  /** Queues a request behind all that wait. */
  add(request: Request): void {
    this.#waitingList.push(request);
  }

  /** @param before the step before this one, when it is still in flight (in-flight.ts) */
  schedule(before?: StepPlan): StepPlan {
    const step = new StepDraft(this.#sizes, before?.claimed, (key) => this.#loads?.isComing(key) === true);
    const blocksAreShort = this.#scheduleDecodes(step);
    const decodes = step.pieces.size;
    const { stepTokens, prefillTokensBesideDecodes } = this.#limits;
    const beside = Math.min(stepTokens - decodes, prefillTokensBesideDecodes) - step.rectifiedRows;
    step.budget = decodes === 0 ? stepTokens : Math.max(0, beside);
    this.#adoptResident();
    if (!blocksAreShort || this.running.length === 0) this.#admit(step);
    this.#loads?.want(this.running.filter(({ decoding }) => !decoding));
    const leftOut = this.#fairness.leftOut(this.running);
    for (const request of leftOut) step.dropDecode(request);
    step.budget = this.#fairness.promptRows(this.running, step.budget);
    const prefilling = this.running.filter((request) => !leftOut.has(request) && !request.awaitsMask);
    if (this.#fairness.isShared) step.rowCostTokens = this.#limits.rowCostTokens;
    this.#prefill.schedule(prefilling, step);
    if (this.#sparse !== undefined) this.#watchPrompts(step, this.#sparse);
    // The light requests, which were to have the step for themselves, wait for blocks that others compute.
    if (leftOut.size > 0 && step.isEmpty) return this.schedule(before);
    this.#fairness.noteStep((request) => step.workOf(request));
    return step.plan(this.#relocation?.takeMoves());
  }

  /** Whether `schedule` may be called while a step is in flight. */
  canScheduleAhead(): boolean {
    const { admissible } = this;
    if (this.#relocation?.mayMove(this.running, admissible) === true) return false;
    return canScheduleAhead(this.running, admissible, openBlocks(this.#pool, this.running));
  }

  /** Waiting requests that the next step may admit: some may be passed over. */
  get admissible(): readonly Request[] {
    const places = this.#limits.maxRunningRequests - this.running.length;
    return places <= 0 ? [] : this.waiting.slice(0, places + maxPassed);
  }

  /** Takes the request out, wherever it is. Its blocks stay its own until `releaseBlocks`. */
  remove(request: Request): void {
    for (const list of [this.#runningList, this.#waitingList]) {
      const at = list.indexOf(request);
      if (at >= 0) list.splice(at, 1);
    }
    request.reservedBlocks = 0;
  }

  /** Gives its blocks back, those of its last run first: what came first in the prompt stays findable longest. */
  releaseBlocks(request: Request): void {
    this.#sparse?.release(request);
    for (let i = request.runs.length - 1; i >= 0; i--) request.runs[i].release(this.#cache);
  }

  /** Blocks promised to running requests and not taken yet. */
  get reservedBlocks(): number {
    return reservedBlocks(this.running);
  }

  /** @returns whether blocks are short: a request was preempted, or waits because nobody can be. */
  #scheduleDecodes(step: StepDraft): boolean {
    const before = this.preemptions;
    let isWaiting = false;
    const leftOut: Request[] = [];
    const keptWords = this.running.every(({ decoding }) => decoding) ? 0 : Math.floor(this.#sizes.listWords / 4);
    for (const request of this.#decodeOrder()) {
      const run = request.openRun;
      // A request before it may have preempted it.
      if (!request.decoding || run === undefined || request.drawsLastToken || request.awaitsMask) continue;
      const lacking = run.blockCount - run.blocks.length;
      const isClosing = request.closingReason !== undefined;
      if (!isClosing && step.listBudget.rowsFor(run, 1, 0, "together", keptWords) === 0) {
        leftOut.push(request);
        continue;
      }
      if (!this.#makeRoom(request, lacking, step)) {
        isWaiting = true;
        continue;
      }
      if (isClosing) {
        request.decoding = false;
        request.reservedBlocks = lacking;
        continue;
      }
      run.coverWithBlocks(run.tokenCount, this.#cache);
      this.#addDecode(request, run, step);
    }
    this.#leftOut = leftOut;
    return isWaiting || this.preemptions > before;
  }

  /** The newest token of an answer, by a row that reads all it sees or chooses; or tokens that are computed anew. */
  #addDecode(request: Request, run: Run, step: StepDraft): void {
    if (this.#sparse === undefined || request.sparse === undefined) return step.addDecode(request, run);
    const { stepTokens, maxRunningRequests, prefillTokensBesideDecodes } = this.#limits;
    const mostRows = Math.min(stepTokens - maxRunningRequests, prefillTokensBesideDecodes) + 1;
    const left = mostRows - step.rectifiedRows;
    const isDue = left > 1 && this.#sparse.rowsToRectify(request, run, mostRows) > 0;
    if (isDue) return step.addRectified(request, run, left, this.#sparse.densePieceOf(request));
    step.addDecode(request, run, this.#sparse.pieceOf(request, run, this.#roomFor(request)));
  }

  /** Pieces that end prompts: seats may have to know their queries. */
  #watchPrompts(step: StepDraft, decoding: SparseDecoding): void {
    for (const { request, run, wantsLogits } of [...step.pieces.values()]) {
      if (request.decoding || !wantsLogits || request.sparse === undefined) continue;
      step.tell(run, decoding.promptPieceOf(request, run, this.#roomFor(request)));
    }
  }

  /** Whether so many blocks can be taken for the request; a block for each running one is left for their next tokens. */
  #roomFor(request: Request): (blockCount: number) => boolean {
    return (count) => refusalOf(this.#pool, this.running, request, count + this.running.length) === undefined;
  }

  /** Running requests: those that have waited longest first, then in order of admission. */
  #decodeOrder(): readonly Request[] {
    if (this.#leftOut.length === 0) return [...this.running];
    const running = new Set(this.running);
    // In the order of first insertion.
    const order = new Set([...this.#leftOut.filter((request) => running.has(request)), ...this.running]);
    return [...order];
  }

  /**
   * Gives buffers up, and then preempts from the end, until so many blocks are free for `request`; false when it was
   * preempted itself. A step in
   * flight may hold the blocks of any running request, so while there is one, nobody is preempted, and false says that
   * `request` waits for it. `canScheduleAhead` makes that rare. It cannot rule it out: the blocks taken for the requests
   * before this one can raise the floors of other tenants.
   */
  #makeRoom(request: Request, blockCount: number, step: StepDraft): boolean {
    while (blockCount > 0) {
      const refusal = refusalOf(this.#pool, this.running, request, blockCount);
      if (refusal === undefined) return true;
      if (step.isAhead) return false;
      const holder = this.#sparse?.releaseLast(this.running);
      if (holder !== undefined) {
        step.tell(holder.openRun, undefined);
        continue;
      }
      const victim = victimFor(this.running, request, refusal);
      this.remove(victim);
      this.releaseBlocks(victim);
      step.dropDecode(victim);
      victim.decoding = false;
      this.#waitingList.unshift(victim);
      this.preemptions += 1;
      if (victim === request) return false;
    }
    return true;
  }

  /** Admits first come first served. A request that waits only because of others' floors lets those behind it pass. */
  #admit(step: StepDraft): void {
    for (let passed = 0; this.running.length < this.#limits.maxRunningRequests && passed <= maxPassed; ) {
      const request = this.waiting[passed];
      if (request === undefined) return;
      const refusal = request.blockCount > this.#pool.blockCount ? "never" : this.#tryAdmit(request);
      if (refusal === "full") return;
      if (refusal === "floors") {
        passed += 1;
        continue;
      }
      if (refusal === "never") step.outgrown.push(request);
      this.#waitingList.splice(passed, 1);
    }
  }

  #tryAdmit(request: Request): Refusal | undefined {
    const required = request.blockCount;
    const found = request.runs.map((run) => run.residentBlocks(this.#cache));
    let foundLive = 0;
    for (const [index, run] of request.runs.entries()) {
      for (const blockId of found[index]) if (this.#isShared(blockId, run)) foundLive += 1;
    }
    // Free blocks that are hit leave the free list too, so only live ones lower what is needed.
    const refusal = refusalOf(this.#pool, this.running, request, required - foundLive);
    if (refusal !== undefined) return refusal;
    request.reservedBlocks = required;
    const isFirst = request.times.markAdmitted(this.#clock());
    for (const [index, run] of request.runs.entries()) {
      const foundTokens = this.#adopt(run, request, found[index]);
      if (!isFirst || !run.keyed) continue;
      this.queriedTokens += run.promptTokens;
      this.lackedTokens += run.promptTokens - foundTokens;
    }
    this.#relocation?.settleAll(request, found);
    this.#runningList.push(request);
    return undefined;
  }

  /** Adopts what others computed since the last step. Comes before admission, because it frees reserved blocks. */
  #adoptResident(): void {
    for (const request of this.running) {
      if (request.decoding) continue;
      for (const run of request.runs) {
        const found = run.residentBlocks(this.#cache);
        const isBrought = found.length > 0 && this.#cache.tierOf(found[0]) !== "device";
        const tokens = this.#adopt(run, request, found);
        if (isBrought) this.broughtTokens += tokens;
        this.#relocation?.settle(run, found.length);
      }
    }
  }

  /** Whether the block is in use already, at the place where the run wants it: then the run takes no free block. */
  #isShared(blockId: BlockId, run: Run): boolean {
    return this.#relocation?.isShared(blockId, run) ?? this.#pool.isLive(blockId);
  }

  #adopt(run: Run, request: Request, found: readonly BlockId[]): number {
    if (found.length === 0) return 0;
    const tokens = run.adopt(found, this.#cache);
    this.hitTokens += tokens;
    request.reservedBlocks -= found.length;
    return tokens;
  }
}
