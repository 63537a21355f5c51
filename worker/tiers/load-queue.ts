/**
 * How files come to be loaded: in whose turn, what a load costs beside computing, what is not tried again for a while, and
 * how the gateway is told.
 */
import type { KvObject } from "../contract/kv-object.ts";
import type { WorkerMessage } from "../contract/messages.ts";
import type { KvOwner } from "../contract/owners.ts";
import type { BlockKey } from "../contract/units.ts";

export interface QueuedLoad {
  readonly owner: KvOwner;
  readonly bytes: number;
}

interface Line<Load> {
  readonly loads: Load[];
  bytes: number;
}

/** Owners are served in turn, so that one with many files does not hold up the others. */
export class LoadQueue<Load extends QueuedLoad> {
  /** By the owner's number; the owner whose turn it is comes first. */
  readonly #lines = new Map<number, Line<Load>>();

  add(load: Load): void {
    const line = this.#lines.getOrInsertComputed(load.owner.number, () => ({ loads: [], bytes: 0 }));
    line.loads.push(load);
    line.bytes += load.bytes;
  }

  take(): Load | undefined {
    const [first] = this.#lines;
    if (first === undefined) return undefined;
    const [owner, line] = first;
    const load = line.loads.shift();
    line.bytes -= load?.bytes ?? 0;
    this.#lines.delete(owner);
    if (line.loads.length > 0) this.#lines.set(owner, line);
    return load;
  }

  /** Bytes that are loaded before what this owner adds now: its own, and of each other owner at most as many. */
  bytesBefore({ number }: KvOwner): number {
    const own = this.#lines.get(number)?.bytes ?? 0;
    let before = own;
    for (const [owner, { bytes }] of this.#lines) if (owner !== number) before += Math.min(own, bytes);
    return before;
  }
}

/** The weight of a new measurement in the average. */
const newPart = 1 / 8;
/** The average goes back to what the start measured: this part of the distance is left after a minute. */
const leftAMinute = 0.9;
const minuteMs = 60_000;

/**
 * Milliseconds for a unit of work: a moving average. It is drawn back to what the first units took, so that what was
 * slow once is tried again.
 */
export class Cost {
  readonly #probeUnits: number;
  readonly #nowMs: () => number;
  #probed = { units: 0, ms: 0 };
  #each: number;
  #atMs: number;

  /**
   * @param guess until something was measured
   * @param probeUnits how many units count as the first ones
   */
  constructor(guess: number, probeUnits: number, nowMs: () => number) {
    this.#each = guess;
    this.#probeUnits = probeUnits;
    this.#nowMs = nowMs;
    this.#atMs = nowMs();
  }

  note(units: number, ms: number): void {
    if (units <= 0) return;
    if (this.#probed.units < this.#probeUnits) {
      this.#probed = { units: this.#probed.units + units, ms: this.#probed.ms + ms };
      this.#each = this.#probed.ms / this.#probed.units;
    } else this.#each = this.each + (ms / units - this.each) * newPart;
    this.#atMs = this.#nowMs();
  }

  /** Whether `each` is no guess any more. */
  get isMeasured(): boolean {
    return this.#probed.units > 0;
  }

  get each(): number {
    const { units, ms } = this.#probed;
    if (units === 0) return this.#each;
    const left = leftAMinute ** ((this.#nowMs() - this.#atMs) / minuteMs);
    return ms / units + (this.#each - ms / units) * left;
  }
}

/** A step of fewer rows says little of how long prompts take. */
const fewRows = 64;
/** Tokens of prompts that are measured first. */
const probeTokens = 2_048;

/** What a token of a prompt takes to compute. Until steps have shown it, everything is loaded. */
export class TokenCost {
  readonly #tokenMs: Cost;

  constructor(nowMs: () => number) {
    this.#tokenMs = new Cost(Number.POSITIVE_INFINITY, probeTokens, nowMs);
  }

  /** Notes a step that computed so many rows of prompts. */
  noteStep(rows: number, ms: number): void {
    if (rows >= fewRows) this.#tokenMs.note(rows, ms);
  }

  get each(): number {
    return this.#tokenMs.each;
  }

  /** What loading a token's KV takes, in tokens that are computed meanwhile; nothing until that is known. */
  loadCost(loadMs: number): { readonly loadCost?: number } {
    return Number.isFinite(this.each) ? { loadCost: loadMs / this.each } : {};
  }
}

/** After this many failures in a minute nothing is read for a minute. */
const [mostFailures, restMs] = [8, 60_000];

/** Failures of loads, and what they lead to. */
export class LoadFaults {
  readonly #nowMs: () => number;
  /** Objects that came too late or not whole, and until when nobody waits for them again. */
  readonly #givenUp = new Map<string, number>();
  #failures: number[] = [];
  #restsUntilMs = 0;

  constructor(nowMs: () => number) {
    this.#nowMs = nowMs;
  }

  /** Whether nothing is read for now, after too many failures. */
  get isResting(): boolean {
    return this.#nowMs() < this.#restsUntilMs;
  }

  giveUp(objectId: string): void {
    this.#givenUp.set(objectId, this.#nowMs() + restMs);
  }

  isGivenUp(objectId: string): boolean {
    const untilMs = this.#givenUp.get(objectId);
    if (untilMs === undefined) return false;
    if (this.#nowMs() < untilMs) return true;
    this.#givenUp.delete(objectId);
    return false;
  }

  note(): void {
    const nowMs = this.#nowMs();
    this.#failures = [...this.#failures.filter((atMs) => atMs > nowMs - restMs), nowMs];
    if (this.#failures.length < mostFailures) return;
    this.#failures = [];
    this.#restsUntilMs = nowMs + restMs;
  }
}

/** How many objects one message to the gateway tells of at most. */
const mostObjects = 256;

interface LoadReport {
  readonly objectIds: string[];
  blocks: number;
  bytes: number;
}

/** What was loaded, gathered so that the gateway is told of many files at once: a message for each took as long as opening it. */
export class LoadReports {
  readonly #emit: (message: WorkerMessage) => void;
  /** Reports by the key that the objects' chains begin with, which tells whose they are. */
  readonly #reports = new Map<BlockKey, LoadReport>();
  #objectCount = 0;

  constructor(emit: (message: WorkerMessage) => void) {
    this.#emit = emit;
  }

  /** Notes that so many blocks of the object, of so many bytes together, were stored. */
  add({ id, rootKey }: KvObject, blocks: number, bytes: number): void {
    const report = this.#reports.getOrInsertComputed(rootKey, () => ({ objectIds: [], blocks: 0, bytes: 0 }));
    report.objectIds.push(id);
    report.blocks += blocks;
    report.bytes += bytes;
    this.#objectCount += 1;
    if (this.#objectCount >= mostObjects) this.flush();
  }

  flush(): void {
    for (const [rootKey, report] of this.#reports) this.#emit({ type: "loaded", rootKey, ...report });
    this.#reports.clear();
    this.#objectCount = 0;
  }
}
