/**
 * Owns the worker processes: one for each device, started, watched, started again with back-off. A worker
 * that says `fatal` stays down, because trying again will not mend it.
 */
import type { GatewayMessage, WorkerMessage } from "../../../worker/contract/messages.ts";
import type { Log } from "../../base/log.ts";
import type { OpenLink, WorkerCommand, WorkerExit, WorkerLink } from "./link.ts";
import type { Registry } from "./registry.ts";

export interface WorkerEvents {
  onReady(workerId: string): void;
  onMessage(workerId: string, message: WorkerMessage): void;
  /** The process has gone, with its cache and its requests. */
  onLost(workerId: string): void;
}

export interface SupervisorOptions {
  readonly devices: readonly string[];
  readonly command: (device: string, index: number) => WorkerCommand;
  readonly openLink: OpenLink;
  readonly registry: Registry;
  readonly log: Log;
  readonly backoffMinMs: number;
  readonly backoffMaxMs: number;
  /** A worker that was ready this long starts again with the shortest back-off. */
  readonly stableMs: number;
}

interface Child {
  readonly id: string;
  readonly device: string;
  readonly index: number;
  link: WorkerLink | undefined;
  restarts: number;
  backoffMs: number;
  readySinceMs: number | undefined;
  fatal: string | undefined;
  timer: ReturnType<typeof setTimeout> | undefined;
}

export class Supervisor {
  readonly #options: SupervisorOptions;
  readonly #children = new Map<string, Child>();
  readonly #firstReady = Promise.withResolvers<void>();
  readonly #allGone = Promise.withResolvers<void>();
  #events: WorkerEvents | undefined;
  #stopping = false;

  constructor(options: SupervisorOptions) {
    this.#options = options;
    // Nobody may be waiting; a rejection without a listener must not end the process.
    this.#firstReady.promise.catch(() => undefined);
  }

  /** Starts a worker for each device. To be called once. */
  start(events: WorkerEvents): void {
    this.#events = events;
    this.#options.devices.forEach((device, index) => {
      const id = `worker-${index}`;
      const { backoffMinMs: backoffMs } = this.#options;
      this.#children.set(id, {
        id,
        device,
        index,
        link: undefined,
        restarts: 0,
        backoffMs,
        readySinceMs: undefined,
        fatal: undefined,
        timer: undefined,
      });
      this.#options.registry.add(id, device);
    });
    for (const child of this.#children.values()) this.#spawn(child);
  }

  /** Resolves with the first worker that is ready; rejects with its sentence when all of them failed for good. */
  firstReady(): Promise<void> {
    return this.#firstReady.promise;
  }

  /** false: the worker cannot be reached; its loss is reported, if it was not yet. */
  send(workerId: string, message: GatewayMessage): boolean {
    return this.#children.get(workerId)?.link?.send(message) ?? false;
  }

  /** Ends a worker that no longer answers; it is started again like one that crashed. */
  kill(workerId: string): void {
    this.#children.get(workerId)?.link?.kill("SIGKILL");
  }

  /** Lets the workers finish what they run, then ends them; those left at the deadline are killed. */
  async stop(deadlineMs: number): Promise<void> {
    this.#stopping = true;
    for (const child of this.#children.values()) {
      clearTimeout(child.timer);
      if (child.link === undefined) this.#options.registry.lost(child.id, "stopped", child.fatal);
      else if (child.readySinceMs === undefined) child.link.kill("SIGKILL");
      else child.link.send({ type: "drain" });
    }
    this.#resolveWhenGone();
    const timer = setTimeout(() => {
      for (const child of this.#children.values()) child.link?.kill("SIGKILL");
    }, deadlineMs);
    await this.#allGone.promise;
    clearTimeout(timer);
  }

  #spawn(child: Child): void {
    const { command, openLink, registry, log } = this.#options;
    child.timer = undefined;
    child.readySinceMs = undefined;
    try {
      child.link = openLink(command(child.device, child.index), {
        onMessage: (message) => this.#onMessage(child, message),
        onExit: (exit) => this.#onExit(child, exit),
      });
    } catch (error) {
      // The system has no process, memory or descriptor to give: perhaps a little later.
      const reason = error instanceof Error ? error.message : String(error);
      log("error", "worker could not be started", { worker: child.id, reason });
      this.#onExit(child, { exitCode: null, signal: null });
      return;
    }
    registry.started(child.id, child.link.pid, child.restarts);
  }

  #onMessage(child: Child, message: WorkerMessage): void {
    if (message.type === "fatal") {
      child.fatal = message.message;
      child.link?.kill("SIGKILL");
      return;
    }
    if (message.type !== "ready") {
      this.#events?.onMessage(child.id, message);
      return;
    }
    try {
      this.#options.registry.becameReady(child.id, message.card);
    } catch (error) {
      child.fatal = error instanceof Error ? error.message : String(error);
      child.link?.kill("SIGKILL");
      return;
    }
    child.readySinceMs = performance.now();
    const { id: worker, device, restarts } = child;
    this.#options.log("info", "worker ready", { worker, device, backend: message.card.backend, restarts });
    this.#firstReady.resolve();
    this.#events?.onReady(child.id);
  }

  #onExit(child: Child, exit: WorkerExit): void {
    const { registry, log, backoffMinMs, backoffMaxMs, stableMs } = this.#options;
    child.link = undefined;
    const state = this.#stopping ? "stopped" : child.fatal === undefined ? "restarting" : "failed";
    registry.lost(child.id, state, child.fatal);
    this.#events?.onLost(child.id);
    if (state === "stopped") {
      this.#resolveWhenGone();
      return;
    }
    const fields = { worker: child.id, exitCode: exit.exitCode ?? undefined, signal: exit.signal ?? undefined };
    if (state === "failed") {
      log("error", "worker failed for good", { ...fields, reason: child.fatal });
      this.#rejectWhenAllFailed();
      return;
    }
    const stable = child.readySinceMs !== undefined && performance.now() - child.readySinceMs >= stableMs;
    if (stable) child.backoffMs = backoffMinMs;
    log("warn", "worker lost", { ...fields, restartInMs: child.backoffMs });
    child.restarts += 1;
    child.timer = setTimeout(() => this.#spawn(child), child.backoffMs);
    child.backoffMs = Math.min(backoffMaxMs, child.backoffMs * 2);
  }

  #rejectWhenAllFailed(): void {
    const children = [...this.#children.values()];
    const failed = children.find((child) => child.fatal !== undefined);
    if (failed === undefined || children.some((child) => child.fatal === undefined)) return;
    this.#firstReady.reject(new Error(failed.fatal));
  }

  #resolveWhenGone(): void {
    if ([...this.#children.values()].every((child) => child.link === undefined)) this.#allGone.resolve();
  }
}
