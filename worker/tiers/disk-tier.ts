/** The worker's side of KV in files: what the engine asks of it, and the messages of the gateway that concern it. */
import type { BlockFormat, BlockMover } from "../backend/backend.ts";
import type { BlockPool } from "../cache/block-pool.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import type { FileTier, KvFileMessage, TierStats, WorkerMessage } from "../contract/messages.ts";
import type { BlockKey } from "../contract/units.ts";
import { Fetches } from "./fetches.ts";
import type { FileSystem } from "./file-system.ts";
import { Keeps } from "./keeps.ts";
import { Loads } from "./loads.ts";
import { sliceBytes, type Turn } from "./object-file.ts";
import type { Requester } from "./requester.ts";

/**
 * The part of steps' time that gaps may take, for work that nobody waits for and for work that requests wait for. Where
 * the same processor would compute what is not loaded, and hold up others for longer, the latter gets more.
 */
const quietPart = 1 / 25;
const urgentPart = { besideDevice: 1 / 20, onProcessor: 1 / 4 };
/** Time that gaps have left is kept for later ones, up to so much. */
const mostLeftMs = 2;
/** Sealed or opened at once while no step runs. */
const restBytes = 4 * 1024 * 1024;

interface Waiter {
  readonly isUrgent: boolean;
  readonly resolve: () => void;
}

const nextRound = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/**
 * Sealing and opening files takes the same thread as the steps of the model, so it has its turns between steps: a small
 * part of the time that steps take, or all of it while none runs. Where a device computes, the thread has nothing to do
 * while a step of prompts runs, which is long: only streams of tokens would feel a turn, and without them there is no bound.
 */
export class StepGaps {
  readonly #waiting: Waiter[] = [];
  readonly #urgentPart: number;
  readonly #isBounded: () => boolean;
  #isStepping = false;
  #leftMs = 0;

  constructor({ sharesProcessor, isDecoding }: Pick<DiskTierOptions, "sharesProcessor" | "isDecoding">) {
    this.#urgentPart = sharesProcessor ? urgentPart.onProcessor : urgentPart.besideDevice;
    this.#isBounded = () => this.#isStepping && (sharesProcessor || isDecoding());
  }

  /** How many times as long as alone urgent work takes while steps follow each other. */
  get slowness(): number {
    return 1 + 1 / this.#urgentPart;
  }

  /** A step begins: no turn is given until its gap. */
  begin(): void {
    this.#isStepping = true;
  }

  /** The gap after a step that took so long. */
  async gap(stepMs: number): Promise<void> {
    if (this.#waiting.length === 0) return;
    const part = this.#waiting.some(({ isUrgent }) => isUrgent) ? this.#urgentPart : quietPart;
    this.#leftMs = Math.min(Math.max(mostLeftMs, stepMs * part), this.#leftMs + stepMs * part);
    // A slice that takes longer than what is left is paid for by the gaps that follow.
    while (this.#waiting.length > 0 && this.#leftMs > 0) {
      const beganMs = performance.now();
      const urgent = this.#waiting.findIndex(({ isUrgent }) => isUrgent);
      this.#waiting.splice(Math.max(0, urgent), 1)[0]?.resolve();
      await nextRound();
      this.#leftMs -= performance.now() - beganMs;
    }
  }

  /** No step runs until the next `begin`. */
  rest(): void {
    this.#isStepping = false;
    for (const { resolve } of this.#waiting.splice(0)) resolve();
  }

  /** Turns of one kind of work: one is asked for with every 256 KiB that it seals or opens beside steps. */
  slices(isUrgent: () => boolean): Turn {
    let leftBytes = 0;
    return (bytes) => {
      leftBytes -= bytes;
      if (leftBytes >= 0) return undefined;
      leftBytes = (this.#isStepping ? sliceBytes : restBytes) - bytes;
      return this.#turn(isUrgent());
    };
  }

  #turn(isUrgent: boolean): Promise<void> {
    if (!this.#isBounded()) return nextRound();
    return new Promise((resolve) => this.#waiting.push({ isUrgent, resolve }));
  }
}

export interface DiskTierOptions {
  readonly mover: BlockMover;
  readonly modelDigest: string;
  readonly blockTokens: number;
  readonly pool: BlockPool;
  readonly cache: PrefixCache;
  /** Whether the processor that opens files computes the steps too, as on a CPU. */
  readonly sharesProcessor: boolean;
  /** Whether requests decode. */
  readonly isDecoding: () => boolean;
  readonly reservedBlocks: () => number;
  /** Resolves when all that was computed before can be found in `cache`; absent: it can be at once. */
  readonly settled?: () => Promise<void>;
  readonly emit: (message: WorkerMessage) => void;
  readonly files?: FileSystem;
  /** Called when something was stored, or nothing more comes of a load. */
  readonly onChange: () => void;
}

export class DiskTier {
  readonly gaps: StepGaps;
  readonly format: BlockFormat;
  readonly loads: Loads;
  readonly #keeps: Keeps;
  readonly #fetches: Fetches;
  #folder = "";

  constructor({ mover, modelDigest, blockTokens, isDecoding, ...parts }: DiskTierOptions) {
    const shape = { modelDigest, blockTokens, blocks: mover.format };
    const gaps = new StepGaps({ ...parts, isDecoding });
    this.gaps = gaps;
    this.format = mover.format;
    const nowMs = () => performance.now();
    const slowness = () => (isDecoding() ? gaps.slowness : 1);
    this.loads = new Loads({ ...parts, shape, mover, nowMs, slowness, slices: (isUrgent) => gaps.slices(isUrgent) });
    this.#keeps = new Keeps({ ...parts, shape, mover, turn: gaps.slices(() => false) });
    const { emit, onChange } = parts;
    const isLoading = (key: BlockKey): boolean => this.loads.isComing(key);
    const computeMs = (tokens: number): number => this.loads.costs.computeMs(tokens);
    const loadMs = (bytes: number): number => this.loads.costs.loadMs(bytes);
    const sizes = { blockTokens, blockBytes: mover.format.bytes };
    const has = (key: BlockKey): boolean => parts.cache.has(key);
    this.#fetches = new Fetches({ ...sizes, computeMs, loadMs, emit, onChange, nowMs, isLoading, has });
  }

  stats(): TierStats {
    const [read, written] = [this.loads.counts, this.#keeps.counts];
    const writes = { writtenBytes: written.bytes, writeMs: written.ms };
    const cost = this.loads.loadCost;
    return { tier: "disk", readBytes: read.bytes, readMs: read.ms, ...writes, ...cost, loads: { ...read.outcomes } };
  }

  /** Whether requests wait for files. */
  get isBusy(): boolean {
    return this.loads.isBusy || this.#fetches.isBusy;
  }

  /** Whether the block is on its way, so that nobody computes it. */
  isComing(key: BlockKey): boolean {
    return this.loads.isComing(key) || this.#fetches.isComing(key);
  }

  /** Brings what these requests lack. */
  want(requesters: readonly Requester[]): void {
    this.loads.want(requesters);
    this.#fetches.want(requesters);
  }

  receive(message: KvFileMessage): void {
    switch (message.type) {
      case "keep":
        return this.#keeps.add(message);
      case "catalog":
        this.#folder = message.folder;
        if (message.tier === "s3") return this.#fetches.add(message.objects);
        return this.loads.add(message.folder, message.objects, message.warm);
      case "moved":
        for (const id of message.objectIds) this.#move(id, message.tier, message.copy);
        return;
      case "prefetch":
        return this.loads.prefetch(message.objectIds);
      case "forget":
        this.#keeps.cancel(message.objectIds);
        this.#fetches.forget(message.objectIds, message.rootKeys);
        return this.loads.forget(message.objectIds, message.rootKeys);
    }
  }

  /** Where a file is now, or still is. */
  #move(id: string, tier: FileTier, copy = 0): void {
    if (tier === "disk") {
      const object = this.#fetches.arrived(id);
      if (object !== undefined) this.loads.add(this.#folder, [{ ...object, copy }], false);
      return;
    }
    const object = this.#fetches.notNow(id) ? undefined : this.loads.objectOf(id);
    if (object === undefined) return;
    this.loads.forget([id]);
    this.#fetches.add([object]);
  }
}
