/** Asks every ready worker for its statistics at an interval, and ends one that has not answered for long. */
import type { Log } from "../../base/log.ts";
import type { Registry } from "./registry.ts";
import type { Supervisor } from "./supervisor.ts";

export interface HeartbeatOptions {
  readonly registry: Registry;
  readonly supervisor: Pick<Supervisor, "send" | "kill">;
  readonly log: Log;
  readonly intervalMs: number;
  /** A step of the model may keep a worker silent for a while; silence longer than this is a hang. */
  readonly hangMs: number;
  readonly nowMs?: () => number;
}

export class Heartbeat {
  readonly #options: HeartbeatOptions;
  readonly #nowMs: () => number;
  /** When a worker last said anything, or was first asked. */
  readonly #heardMs = new Map<string, number>();
  #beatMs: number | undefined;
  #timer: ReturnType<typeof setInterval> | undefined;
  #nextId = 0;

  constructor(options: HeartbeatOptions) {
    this.#options = options;
    this.#nowMs = options.nowMs ?? (() => performance.now());
  }

  start(): void {
    this.#timer = setInterval(() => this.beat(), this.#options.intervalMs);
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  /** Any message shows that the worker lives. */
  heard(workerId: string): void {
    this.#heardMs.set(workerId, this.#nowMs());
  }

  lost(workerId: string): void {
    this.#heardMs.delete(workerId);
  }

  /** One round: kills who was silent for too long, asks the others. */
  beat(): void {
    const nowMs = this.#nowMs();
    this.#forgetPause(nowMs);
    for (const { id } of this.#options.registry.ready()) {
      const heardMs = this.#heardMs.get(id) ?? nowMs;
      this.#heardMs.set(id, heardMs);
      if (nowMs - heardMs > this.#options.hangMs) {
        this.#options.log("error", "worker does not answer", { worker: id, silentMs: Math.round(nowMs - heardMs) });
        this.#options.supervisor.kill(id);
        this.#heardMs.delete(id);
        continue;
      }
      this.#nextId += 1;
      this.#options.supervisor.send(id, { type: "stats", id: this.#nextId });
    }
  }

  /**
   * Time in which this process itself stood still, as a paused machine's does, is not a worker's silence: what workers
   * said meanwhile has not been read yet.
   */
  #forgetPause(nowMs: number): void {
    const pausedMs = nowMs - (this.#beatMs ?? nowMs) - this.#options.intervalMs;
    this.#beatMs = nowMs;
    if (pausedMs <= 0) return;
    for (const [id, heardMs] of this.#heardMs) this.#heardMs.set(id, Math.min(nowMs, heardMs + pausedMs));
  }
}
