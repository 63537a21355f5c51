/** An engine over the fake backend in a tiny world (8 blocks of 4 tokens), and what it emitted. */
import type { BackendShape } from "../../worker/backend/backend.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import type { KvEvent, WorkerMessage } from "../../worker/contract/messages.ts";
import type { EngineLimits } from "../../worker/engine/limits.ts";
import { Engine } from "../../worker/engine/loop.ts";
import type { SparseLimits } from "../../worker/sparse/sparse-decoding.ts";
import type { FileSystem } from "../../worker/tiers/file-system.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import { type BackendParts, withParts } from "../support/plain-backend.ts";

export const eosTokenIds: readonly number[] = [0];

type Finished = Extract<WorkerMessage, { type: "finished" }>;
type Failed = Extract<WorkerMessage, { type: "failed" }>;

export interface TinyOptions extends BackendParts {
  readonly shape?: Partial<BackendShape>;
  readonly limits?: Partial<EngineLimits>;
  readonly onForward?: (batch: Batch) => void | Promise<void>;
  readonly backend?: FakeBackend;
  readonly positions?: "deferred" | "relocate";
  readonly modelDigest?: string;
  readonly files?: FileSystem;
  readonly sparse?: Partial<SparseLimits>;
}

export class TinyWorld {
  readonly backend: FakeBackend;
  readonly engine: Engine;
  readonly messages: WorkerMessage[] = [];
  nowMs = 0;

  constructor({
    shape,
    limits,
    onForward,
    backend,
    positions,
    modelDigest,
    files,
    sparse,
    ...parts
  }: TinyOptions = {}) {
    this.backend = backend ?? new FakeBackend(shape, onForward);
    this.engine = new Engine({
      backend: withParts(this.backend, parts),
      eosTokenIds,
      limits: { maxRunningRequests: 4, maxWaitingRequests: 8, stepTokens: 16, ...limits },
      clock: () => this.nowMs,
      emit: (message) => this.messages.push(message),
      positions,
      ...(modelDigest !== undefined && { modelDigest }),
      ...(files && { files }),
      ...(sparse && { sparse }),
    });
  }

  /** One step, a millisecond later; the invariants hold after it. */
  async step(): Promise<boolean> {
    this.nowMs += 1;
    const worked = await this.engine.step();
    this.engine.checkInvariants();
    return worked;
  }

  async settle(maxSteps = 1_000): Promise<void> {
    for (let i = 0; i < maxSteps; i++) if (!(await this.step())) return;
    throw new Error(`still busy after ${maxSteps} steps`);
  }

  tokensOf(requestId: string): number[] {
    return this.messages.flatMap((m) => (m.type === "tokens" && m.requestId === requestId ? m.tokenIds : []));
  }

  finishedOf(requestId: string): Finished {
    const found = this.messages.find((m): m is Finished => m.type === "finished" && m.requestId === requestId);
    if (found === undefined)
      throw new Error(`${requestId} has not finished: ${JSON.stringify(this.failedOf(requestId))}`);
    return found;
  }

  failedOf(requestId: string): Failed | undefined {
    return this.messages.find((m): m is Failed => m.type === "failed" && m.requestId === requestId);
  }

  get kvEvents(): KvEvent[] {
    return this.messages.flatMap((m) => (m.type === "kv" ? m.events : []));
  }
}
