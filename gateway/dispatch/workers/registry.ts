/** The worker table: who there is, in which state, with which model card and how much to do. */
import type { WorkerStats } from "../../../worker/contract/messages.ts";
import type { ModelCard } from "../../../worker/contract/model-card.ts";

export type WorkerState = "starting" | "ready" | "restarting" | "failed" | "stopped";

export interface WorkerRecord {
  readonly id: string;
  readonly device: string;
  readonly state: WorkerState;
  readonly pid: number | undefined;
  readonly card: ModelCard | undefined;
  /** Times the process was started again. */
  readonly restarts: number;
  /** Why it failed for good. */
  readonly failure: string | undefined;
  /** Requests sent to it that have not ended, and prompt tokens of those that it still has to compute (estimate). */
  readonly inFlight: number;
  readonly pendingTokens: number;
  /** Its last answer to a stats message. */
  readonly stats: WorkerStats | undefined;
}

type Mutable<T> = { -readonly [Key in keyof T]: T[Key] };

export class Registry {
  readonly #workers = new Map<string, Mutable<WorkerRecord>>();
  #card: ModelCard | undefined;

  add(id: string, device: string): void {
    this.#workers.set(id, {
      id,
      device,
      state: "starting",
      pid: undefined,
      card: undefined,
      restarts: 0,
      failure: undefined,
      inFlight: 0,
      pendingTokens: 0,
      stats: undefined,
    });
  }

  /** In the order of the devices. */
  list(): readonly WorkerRecord[] {
    return [...this.#workers.values()];
  }

  /** Those that serve now, in the order of the devices. */
  ready(): readonly WorkerRecord[] {
    return this.list().filter((worker) => worker.state === "ready");
  }

  /**
   * Card of the model that is served, with the smallest pool that a worker had: what fits there fits on every worker.
   * undefined until the first worker was ready. It outlives the worker.
   */
  card(): ModelCard | undefined {
    return this.#card;
  }

  /** A process was started for the worker; it loads its model. @throws Error for a worker that was never added */
  started(id: string, pid: number, restarts: number): void {
    Object.assign(this.#record(id), { state: restarts === 0 ? "starting" : "restarting", pid, restarts });
  }

  /** @throws Error when the worker serves another model than the ones before it. */
  becameReady(id: string, card: ModelCard): void {
    if (this.#card !== undefined && this.#card.digest !== card.digest) {
      throw new Error(`${id} serves model digest ${card.digest}, the others ${this.#card.digest}`);
    }
    if (this.#card === undefined || card.blockCount < this.#card.blockCount) this.#card = card;
    Object.assign(this.#record(id), { state: "ready", card });
  }

  /** The process has gone: what it had to do went with it. */
  lost(id: string, state: "restarting" | "failed" | "stopped", failure?: string): void {
    Object.assign(this.#record(id), {
      state,
      pid: undefined,
      failure,
      inFlight: 0,
      pendingTokens: 0,
      stats: undefined,
    });
  }

  /** Adds to the load of a worker; amounts are negative when work ends. */
  addLoad(id: string, requests: number, tokens: number): void {
    const record = this.#record(id);
    record.inFlight = Math.max(0, record.inFlight + requests);
    record.pendingTokens = Math.max(0, record.pendingTokens + tokens);
  }

  setStats(id: string, stats: WorkerStats): void {
    this.#record(id).stats = stats;
  }

  #record(id: string): Mutable<WorkerRecord> {
    const record = this.#workers.get(id);
    if (record === undefined) throw new Error(`unknown worker ${id}`);
    return record;
  }
}
