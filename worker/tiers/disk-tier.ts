/** The worker's side of KV in files: what the engine asks of it, and the messages of the gateway that concern it. */
import type { BlockFormat, BlockMover } from "../backend/backend.ts";
import type { BlockPool } from "../cache/block-pool.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import type { KvFileMessage, TierStats, WorkerMessage } from "../contract/messages.ts";
import type { FileSystem } from "./file-system.ts";
import { Keeps } from "./keeps.ts";
import { Loads } from "./loads.ts";
import { sliceBytes, type Turn } from "./object-file.ts";

/** The part of a step's time that its gap may last, for work that nobody waits for and for work that requests wait for. */
const quietPart = 1 / 20;
const urgentPart = 1 / 4;
/** Every gap has room for some slices. */
const leastMs = 0.5;

interface Waiter {
  readonly isUrgent: boolean;
  readonly resolve: () => void;
}

const nextRound = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/**
 * Sealing and opening files takes the same thread as the steps of the model, so it has its turns between steps: a small
 * part of the time that steps take, or all of it while none runs.
 */
export class StepGaps {
  readonly #waiting: Waiter[] = [];
  #isStepping = false;

  /** A step begins: no turn is given until its gap. */
  begin(): void {
    this.#isStepping = true;
  }

  /** The gap after a step that took so long. */
  async gap(stepMs: number): Promise<void> {
    if (this.#waiting.length === 0) return;
    const part = this.#waiting.some(({ isUrgent }) => isUrgent) ? urgentPart : quietPart;
    const endMs = performance.now() + Math.max(leastMs, stepMs * part);
    while (this.#waiting.length > 0 && performance.now() < endMs) {
      const urgent = this.#waiting.findIndex(({ isUrgent }) => isUrgent);
      this.#waiting.splice(Math.max(0, urgent), 1)[0]?.resolve();
      await nextRound();
    }
  }

  /** No step runs until the next `begin`. */
  rest(): void {
    this.#isStepping = false;
    for (const { resolve } of this.#waiting.splice(0)) resolve();
  }

  /** A worker's own turns: one is asked for with every 256 KiB that it seals or opens. */
  slices(isUrgent: () => boolean): Turn {
    let leftBytes = 0;
    return (bytes) => {
      leftBytes -= bytes;
      if (leftBytes >= 0) return undefined;
      leftBytes = sliceBytes - bytes;
      return this.#turn(isUrgent());
    };
  }

  #turn(isUrgent: boolean): Promise<void> {
    if (!this.#isStepping) return nextRound();
    return new Promise((resolve) => this.#waiting.push({ isUrgent, resolve }));
  }
}

export interface DiskTierOptions {
  readonly mover: BlockMover;
  readonly modelDigest: string;
  readonly blockTokens: number;
  readonly pool: BlockPool;
  readonly cache: PrefixCache;
  readonly reservedBlocks: () => number;
  /** Resolves when all that was computed before can be found in `cache`; absent: it can be at once. */
  readonly settled?: () => Promise<void>;
  readonly emit: (message: WorkerMessage) => void;
  readonly files?: FileSystem;
  /** Called when something was stored, or nothing more comes of a load. */
  readonly onChange: () => void;
}

export class DiskTier {
  readonly gaps = new StepGaps();
  readonly format: BlockFormat;
  readonly loads: Loads;
  readonly #keeps: Keeps;

  constructor({ mover, modelDigest, blockTokens, ...parts }: DiskTierOptions) {
    const shape = { modelDigest, blockTokens, blocks: mover.format };
    const { gaps } = this;
    this.format = mover.format;
    const nowMs = () => performance.now();
    this.loads = new Loads({ ...parts, shape, mover, nowMs, slices: (isUrgent) => gaps.slices(isUrgent) });
    this.#keeps = new Keeps({ ...parts, shape, mover, turn: gaps.slices(() => false) });
  }

  stats(): TierStats {
    const [read, written] = [this.loads.counts, this.#keeps.counts];
    const writes = { writtenBytes: written.bytes, writeMs: written.ms };
    return { tier: "disk", readBytes: read.bytes, readMs: read.ms, ...writes, loads: { ...read.outcomes } };
  }

  receive(message: KvFileMessage): void {
    switch (message.type) {
      case "keep":
        return this.#keeps.add(message);
      case "catalog":
        return this.loads.add(message.folder, message.objects, message.warm);
      case "forget":
        this.#keeps.cancel(message.objectIds);
        return this.loads.forget(message.objectIds, message.rootKeys);
    }
  }
}
