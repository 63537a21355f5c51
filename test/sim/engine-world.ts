/**
 * A seeded life of one engine: requests come, are aborted, keys are evicted, steps fail; every answer is
 * compared with the one worked out by definition, and the bookkeeping is re-derived after every step.
 */
import { expect } from "bun:test";
import type { SparseShape } from "../../worker/backend/backend.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import type { KvEvent, PlanRun, SubmitMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import { choiceModes } from "../../worker/contract/sparse.ts";
import { blockCountForTokens } from "../../worker/contract/units.ts";
import { Engine } from "../../worker/engine/loop.ts";
import type { KvPositions } from "../../worker/relocation/relocation.ts";
import type { SparseLimits } from "../../worker/sparse/sparse-decoding.ts";
import { blockTokens, countUp, submitRuns } from "../engine/plans.ts";
import { referenceAnswer } from "../engine/reference.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import { FakeDevice } from "../support/fake-device.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { closedChain, randomBlendRuns, randomRuns, runsOver, withForcedCollision } from "./plans.ts";
import { Choices } from "./random.ts";

const eosTokenIds = [0, 1];

type Finished = Extract<WorkerMessage, { type: "finished" }>;

/** Candidates that no context of a simulation has. */
const allTokens = 1_000;

/**
 * Where a share of the copies is chosen, the choice depends on what was found; where a row chooses, on who had seats. With
 * room for all candidates a row gives what a dense one does.
 */
function isAnswerKnown({ plan, reuse, sparse }: SubmitMessage, report: Finished["sparse"]): boolean {
  if (sparse !== undefined && sparse.tokens < allTokens && report?.steps !== 0) return false;
  const ratios = plan.runs.map((run) => run.blend?.recomputeRatio ?? 0);
  return !reuse || ratios.every((ratio) => ratio === 0 || ratio === 1);
}

interface Track {
  readonly message: SubmitMessage;
  readonly tokenIds: number[];
  end: WorkerMessage | undefined;
}

export interface SimulationCounts {
  requests: number;
  preemptions: number;
  hitTokens: number;
  evictedBlocks: number;
  /** Requests over a chain that an earlier one generated and closed. */
  overClosed: number;
  copiedTokens: number;
  /** Rows that chose what they read, and tokens that were computed anew. */
  sparseSteps: number;
  rectifiedTokens: number;
  /** Rows of a step that took a token which was not known when it began. */
  namedRows: number;
  ends: Record<string, number>;
}

/** Steps one after the other, or each begun while the one before it runs. */
export interface SimulationMode {
  /** A backend that takes a step while one is in flight. */
  readonly pipelined?: boolean;
  /** Default: deferred. */
  readonly positions?: KvPositions;
  /** The backend chooses, and half of the requests ask for it. */
  readonly sparse?: boolean;
}

export class Simulation {
  readonly counts: SimulationCounts = {
    requests: 0,
    preemptions: 0,
    hitTokens: 0,
    evictedBlocks: 0,
    overClosed: 0,
    copiedTokens: 0,
    sparseSteps: 0,
    rectifiedTokens: 0,
    namedRows: 0,
    ends: {},
  };
  private readonly choices: Choices;
  private readonly tracks = new Map<string, Track>();
  private readonly events: KvEvent[] = [];
  private readonly backend: FakeBackend;
  private readonly engine: Engine;
  private readonly faults: boolean;
  private readonly relocating: boolean;
  private readonly sparse: boolean;
  private readonly stepTokens: number;
  private nowMs = 0;
  private failNextStep = false;

  constructor(seed: number, { pipelined = false, positions = "deferred", sparse = false }: SimulationMode = {}) {
    this.relocating = positions !== "deferred";
    this.sparse = sparse;
    this.choices = new Choices(seed);
    const blockCount = this.choices.pick([8, 12, 24]);
    const contextTokens = this.choices.pick([40, 256]);
    this.faults = this.choices.chance(0.3);
    const sparseShape = sparse ? this.drawSparseShape() : undefined;
    const shape = { blockCount, contextTokens, ...(sparseShape && { sparse: sparseShape }) };
    const onForward = (batch: Batch) => this.whileComputing(batch);
    const onBegin = () => this.whenBeginning();
    this.backend = pipelined
      ? new FakeDevice({ shape, onForward, onBegin, relative: this.relocating })
      : new FakeBackend(shape, onForward, { relative: this.relocating });
    this.stepTokens = this.choices.pick([6, 7, 16, 64]);
    const requests = { maxRunningRequests: this.choices.int(1, 6), maxWaitingRequests: 6 };
    const prefillTokensBesideDecodes = this.choices.pick([1, 5, 128]);
    const stepListWords = this.choices.pick([1, 100, 1 << 20]);
    const limits = { ...requests, stepTokens: this.stepTokens, prefillTokensBesideDecodes, stepListWords };
    this.engine = new Engine({
      backend: this.backend,
      eosTokenIds,
      limits,
      clock: () => this.nowMs,
      emit: (message) => this.receive(message),
      debug: true,
      positions,
      ...(sparse && { sparse: this.drawSparseLimits() }),
    });
  }

  private drawSparseShape(): SparseShape {
    const seats = { seats: this.choices.int(1, 3), listTokens: this.choices.pick([20, 2 * allTokens]) };
    return { ...seats, shadowBytesPerBlock: 4, modes: choiceModes };
  }

  private drawSparseLimits(): SparseLimits {
    const { choices } = this;
    const [fromTokens, tailTokens] = [choices.pick([0, 12]), choices.pick([4, 8])];
    const mostCost = choices.pick([0.8, 2, Number.POSITIVE_INFINITY]);
    return { fromTokens, tailTokens, askTokens: choices.int(1, 8), mostCost };
  }

  async run(requestCount: number): Promise<SimulationCounts> {
    const submitChance = this.choices.pick([0.1, 0.4, 0.9]);
    while (this.counts.requests < requestCount) {
      this.nowMs += 1;
      if (this.choices.chance(submitChance)) this.submit();
      this.disturb();
      this.failNextStep = this.faults && this.choices.chance(0.01);
      await this.engine.step();
    }
    this.failNextStep = false;
    for (let steps = 0; await this.engine.step(); steps++) expect(steps).toBeLessThan(10_000);
    this.checkEnd();
    return this.counts;
  }

  private submit(): void {
    const requestId = `r${this.counts.requests++}`;
    const { choices } = this;
    const maxTokens = choices.chance(0.15) ? 0 : choices.int(1, 24);
    const chain = maxTokens > 0 && choices.chance(0.3) ? this.pickClosedChain() : undefined;
    if (chain !== undefined) this.counts.overClosed += 1;
    const draw = choices.chance(0.3) ? randomBlendRuns : randomRuns;
    const runs = chain === undefined ? draw(choices, maxTokens > 0) : runsOver(choices, chain);
    const answer = submitRuns(requestId, choices.chance(0.1) ? withForcedCollision(runs, choices) : runs, {
      reuse: choices.chance(0.9),
      params: { maxTokens, ignoreEos: choices.chance(0.3), minTokens: Math.min(maxTokens, choices.int(0, 3)) },
      sampling: {
        temperature: choices.pick([0, 0.8, 1.5]),
        topP: choices.pick([1, 0.9]),
        topK: choices.pick([0, 5]),
        repetitionPenalty: choices.pick([1, 1, 1.3]),
        frequencyPenalty: choices.pick([0, 0, 0.5]),
        seed: choices.int(0, 3),
      },
    });
    const closing = maxTokens > 0 && choices.chance(0.5) ? countUp(90, choices.int(0, blockTokens)) : undefined;
    const closed = closing === undefined ? answer : { ...answer, closeTokenIds: closing };
    const message = this.owned(this.sparse ? this.choosing(closed) : closed);
    this.tracks.set(requestId, { message, tokenIds: [], end: undefined });
    this.engine.submit(message);
  }

  private choosing(message: SubmitMessage): SubmitMessage {
    const { choices } = this;
    const isBlended = message.plan.runs.some(({ blend }) => blend !== undefined);
    if (isBlended || message.params.maxTokens === 0 || choices.chance(0.4)) return message;
    const tokens = choices.pick([1, 4, 9, allTokens]);
    return {
      ...message,
      sparse: { mode: choices.pick(choiceModes), tokens, rectifyTokens: choices.pick([0, 1, 3, 8]) },
    };
  }

  /** Some requests are of tenants, some of them with a quota, over texts of their own or of another's. */
  private owned(message: SubmitMessage): SubmitMessage {
    const { choices } = this;
    if (choices.chance(0.2)) return message;
    const quota = () => (choices.chance(0.2) ? { quotaBlocks: choices.int(0, 6) } : {});
    // One of them has many requests at a time.
    const owners = [1, 2].map(() => ({ number: choices.chance(0.6) ? 1 : choices.int(0, 3), ...quota() }));
    const ofRun = Uint16Array.from(message.plan.runs, () => choices.int(0, 1));
    return { ...message, owners: { owners, ofRun }, retention: choices.pick([0, 0, 1, 4]) };
  }

  private pickClosedChain(): PlanRun[] | undefined {
    const chains = [...this.tracks.values()].flatMap(({ message, tokenIds, end }) => {
      const { plan, closeTokenIds } = message;
      if (closeTokenIds === undefined || end?.type !== "finished" || end.reason === "abort") return [];
      return [closedChain(plan.runs, tokenIds, closeTokenIds)];
    });
    return chains.length === 0 ? undefined : this.choices.pick(chains);
  }

  /** Aborts and evictions, between steps and while a step computes. */
  private disturb(): void {
    const { choices } = this;
    if (choices.chance(0.05)) this.engine.abort(`r${choices.int(0, this.counts.requests)}`);
    if (!choices.chance(0.1)) return;
    const keys = residentKeys(this.engine).filter(() => choices.chance(0.3));
    if (choices.chance(0.5)) return this.engine.cache.pin(keys, choices.chance(0.7));
    this.engine.evict(keys);
    const resident = new Set(residentKeys(this.engine));
    expect(keys.filter((key) => resident.has(key))).toEqual([]);
  }

  private async whileComputing(batch: Batch): Promise<void> {
    expect(batch.tokenIds.length).toBeLessThanOrEqual(this.stepTokens);
    if (this.failNextStep) throw new Error("injected");
    if (!this.choices.chance(0.2)) return;
    await Promise.resolve();
    this.disturb();
  }

  private whenBeginning(): void {
    if (this.faults && this.choices.chance(0.005)) throw new Error("injected");
  }

  private receive(message: WorkerMessage): void {
    if (message.type === "kv") {
      this.events.push(...message.events);
      return;
    }
    if (!("requestId" in message)) throw new Error(`unexpected message ${message.type}`);
    const track = this.tracks.get(message.requestId);
    if (track === undefined) throw new Error(`message about an unknown request ${message.requestId}`);
    if (track.end !== undefined) throw new Error(`${message.requestId} got ${message.type} after its end`);
    if (message.type === "tokens") track.tokenIds.push(...message.tokenIds);
    else track.end = message;
  }

  private checkEnd(): void {
    this.engine.checkInvariants();
    const stats = this.engine.stats();
    expect(stats.usedBlocks).toBe(0);
    expect(stats.runningRequests + stats.waitingRequests).toBe(0);
    if (this.backend instanceof FakeDevice) {
      expect(this.backend.faults).toEqual([]);
      this.counts.namedRows = this.backend.namedRows;
    }
    Object.assign(this.counts, {
      preemptions: stats.preemptions,
      hitTokens: stats.hitTokens,
      evictedBlocks: stats.evictedBlocks,
    });
    this.checkEvents();
    for (const track of this.tracks.values()) this.checkAnswer(track);
  }

  /** Replaying the events gives what is resident; sequence numbers have no gap; chains grow from what is there. */
  private checkEvents(): void {
    const resident = new Set<string>();
    const roots = new Set<string>(
      [...this.tracks.values()].flatMap(({ message }) => message.plan.runs.map(({ rootKey }) => rootKey)),
    );
    this.events.forEach((event, index) => {
      expect(event.sequence).toBe(index + 1);
      event.blockKeys.forEach((key, at) => {
        expect(resident.has(key)).toBe(event.type === "removed");
        if (event.type === "removed") {
          resident.delete(key);
          return;
        }
        resident.add(key);
        const previous = event.previousKeys[at];
        expect(resident.has(previous) || roots.has(previous)).toBe(true);
        expect(event.tokenCounts[at]).toBeWithin(1, blockTokens + 1);
      });
    });
    expect([...resident].sort()).toEqual(residentKeys(this.engine).sort());
  }

  private checkAnswer({ message, tokenIds, end }: Track): void {
    const { runs } = message.plan;
    const { blockCount } = this.backend.shape;
    const promptBlocks = runs.reduce((sum, run) => sum + blockCountForTokens(run.tokenIds.length, blockTokens), 0);
    if (end?.type === "failed") {
      this.countEnd(end.code);
      if (end.code === "bad_plan") {
        const endPosition = Math.max(...runs.map((run) => run.position + run.tokenIds.length));
        const closing = message.closeTokenIds === undefined ? 0 : message.closeTokenIds.length + 1;
        expect(endPosition + closing).toBeGreaterThan(this.backend.shape.contextTokens);
      } else if (end.code === "prompt_too_long") expect(promptBlocks).toBeGreaterThan(blockCount);
      else if (end.code === "internal") expect(this.faults).toBe(true);
      return;
    }
    if (end?.type !== "finished") throw new Error(`${message.requestId} has no end`);
    this.countEnd(end.reason);
    const { usage } = end;
    this.checkSparse(message, end);
    // An abort may come between a stop token and the end of what closes the chain.
    const stopped = end.reason === "abort" && message.closeTokenIds !== undefined ? [0, 1] : [0];
    const unseen = end.reason === "stop" ? [1] : stopped;
    expect(unseen).toContain(usage.completionTokens - tokenIds.length);
    expect(usage.promptTokens).toBe(runs.reduce((sum, run) => sum + run.tokenIds.length, 0));
    expect(usage.cachedTokens + usage.cacheWriteTokens).toBeLessThanOrEqual(usage.promptTokens);
    if (!message.reuse) expect(usage.cachedTokens + usage.cacheWriteTokens).toBe(0);
    this.checkBlend(message, end);
    if (!isAnswerKnown(message, end.sparse)) return;
    const expected = referenceAnswer(message, this.backend.shape, eosTokenIds, this.relocating);
    expect(tokenIds).toEqual(expected.tokenIds.slice(0, tokenIds.length));
    if (end.reason === "abort") return;
    const open = runs.at(-1);
    const last = open === undefined ? 0 : open.tokenIds.length % blockTokens || blockTokens;
    const grown = last + (message.closeTokenIds?.length ?? 0);
    const outgrown = promptBlocks + Math.ceil((grown + tokenIds.length) / blockTokens) - 1 > blockCount;
    if (end.reason === "length" && outgrown) return;
    expect(tokenIds).toEqual(expected.tokenIds);
    expect<string>(end.reason).toBe(expected.reason);
  }

  private checkSparse({ sparse }: SubmitMessage, { sparse: report, usage }: Finished): void {
    expect(report !== undefined).toBe(sparse !== undefined && this.sparse);
    if (report === undefined) return;
    expect(report.steps + report.denseSteps).toBe(Math.max(report.steps, usage.completionTokens));
    // A step whose answer nobody wanted any more may be counted on the device.
    expect(report.lists - report.steps).toBeWithin(0, 2 + this.counts.requests);
    this.counts.sparseSteps += report.steps;
    this.counts.rectifiedTokens += report.rectifiedTokens;
  }

  private checkBlend({ plan, reuse }: SubmitMessage, { blend, reason }: Finished): void {
    const plans = plan.runs.flatMap((run) => run.blend ?? []);
    expect(blend !== undefined).toBe(plans.length > 0);
    const { copiedTokens, recomputedTokens } = blend ?? { copiedTokens: 0, recomputedTokens: 0 };
    this.counts.copiedTokens += copiedTokens;
    const counts = plans.map(({ copies }) => copies.reduce((sum, copy) => sum + copy.tokenCount, 0));
    const chosen = plans.map(({ recomputeRatio }, i) => Math.ceil(counts[i] * recomputeRatio - 1e-9));
    const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
    expect(copiedTokens).toBeLessThanOrEqual(sum(counts));
    expect(recomputedTokens).toBeLessThanOrEqual(sum(chosen));
    if (reuse || reason === "abort") return;
    expect({ copiedTokens, recomputedTokens }).toEqual({ copiedTokens: sum(counts), recomputedTokens: sum(chosen) });
  }

  private countEnd(name: string): void {
    this.counts.ends[name] = (this.counts.ends[name] ?? 0) + 1;
  }
}
