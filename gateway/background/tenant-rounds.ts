/**
 * Runs the background work of many tenants in a few lanes. Each tenant gets one slice in a round; a tenant whose work has
 * to wait is passed over until then, and its lane serves the others. Only the ids of tenants with work are kept here:
 * the work itself is in the database, and is opened when there is room.
 */
import type { TenantId } from "../../db/ids.ts";
import type { Log } from "../base/log.ts";
import { Pace } from "../base/pace.ts";
import { reasonOf } from "./background-loop.ts";

/** The work of one tenant. */
export interface TenantWork {
  /** When the next slice may begin, by performance.now(); infinite: only after a slice that runs has ended. */
  readyAtMs(): number;
  /** Does one slice of the work. When it throws, the work is opened anew a little later. @returns false when nothing is left */
  runSlice(signal: AbortSignal): Promise<boolean>;
  /** Called when no slice of it runs, and none will. */
  close?(): void;
}

export interface TenantRoundsOptions {
  /** For the log. */
  readonly name: string;
  readonly log: Log;
  /** Slices that run at the same time. */
  readonly lanes: number;
  /** Additional lanes for tenants of which no slice runs, so that they do not wait for long slices of others. */
  readonly spareLanes?: number;
  /** Tenants whose work is open at the same time. */
  readonly maxOpen: number;
  /** Opens the work of a tenant. undefined: it has none. */
  readonly open: (tenantId: TenantId) => TenantWork | undefined;
  /** Told of what a slice threw, before it is tried again. */
  readonly onFailure?: (error: unknown) => void;
}

interface Turn {
  readonly tenantId: TenantId;
  work: TenantWork | undefined;
  running: number;
  /** Something came since its work was opened: it is looked for again before the tenant is forgotten. */
  hasNews: boolean;
  failures: number;
  /** A slice failed: nothing begins before those that run have ended, nor before this time. */
  heldUntilMs: number;
}

const firstRetryMs = 500;
const maxRetryMs = 30_000;

export class TenantRounds {
  readonly #options: TenantRoundsOptions;
  readonly #stop = new AbortController();
  readonly #pace = new Pace();
  /** The next one first. */
  readonly #turns = new Map<TenantId, Turn>();
  #running = 0;
  #open = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #starting: Promise<void> | undefined;
  /** Who waits for the end of it all; undefined: nobody has anything to be done. */
  #busy: ReturnType<typeof Promise.withResolvers<void>> | undefined;

  constructor(options: TenantRoundsOptions) {
    this.#options = options;
  }

  /** Call when the tenant may have something to be done, or may go on. */
  offer(tenantId: TenantId): void {
    if (this.#stop.signal.aborted) return;
    const turn = this.#turns.get(tenantId);
    if (turn !== undefined) turn.hasNews = true;
    else {
      this.#busy ??= Promise.withResolvers<void>();
      this.#turns.set(tenantId, { tenantId, work: undefined, running: 0, hasNews: false, failures: 0, heldUntilMs: 0 });
    }
    this.#startSoon();
  }

  get isIdle(): boolean {
    return this.#busy === undefined;
  }

  /** Resolves when nobody has anything left to be done, or after `stop`. */
  async idle(): Promise<void> {
    await this.#busy?.promise;
  }

  /** Ends with the slices that run. */
  async stop(): Promise<void> {
    this.#stop.abort();
    clearTimeout(this.#timer);
    this.#forgetWaiting();
    await this.idle();
  }

  /** Whoever offered answers first. */
  #startSoon(): void {
    this.#starting ??= new Promise<void>((resolve) => setImmediate(resolve)).then(() => {
      this.#starting = undefined;
      this.#start();
    });
  }

  #start(): void {
    clearTimeout(this.#timer);
    while (!this.#stop.signal.aborted) {
      const next = this.#next();
      if (typeof next === "object") {
        void this.#run(next);
        continue;
      }
      if (Number.isFinite(next)) this.#timer = setTimeout(() => this.#start(), Math.max(0, next));
      break;
    }
    this.#endIfDone();
  }

  /** Whose turn it is, or for how long nobody can have one. */
  #next(): Turn | number {
    const { lanes, spareLanes = 0 } = this.#options;
    if (this.#running >= lanes + spareLanes) return Number.POSITIVE_INFINITY;
    const nowMs = performance.now();
    let soonestMs = Number.POSITIVE_INFINITY;
    for (const turn of this.#turns.values()) {
      if (turn.running > 0 && (this.#running >= lanes || turn.heldUntilMs > 0)) continue;
      if (this.#readyMs(turn) <= nowMs && turn.work === undefined && !this.#tryOpen(turn)) continue;
      const waitMs = this.#readyMs(turn) - nowMs;
      if (waitMs <= 0) return turn;
      soonestMs = Math.min(soonestMs, waitMs);
    }
    return soonestMs;
  }

  #readyMs({ work, heldUntilMs }: Turn): number {
    if (work !== undefined) return Math.max(heldUntilMs, work.readyAtMs());
    return this.#open < this.#options.maxOpen ? heldUntilMs : Number.POSITIVE_INFINITY;
  }

  /** @returns false: it is forgotten, as there is nothing, or held */
  #tryOpen(turn: Turn): boolean {
    turn.hasNews = false;
    turn.heldUntilMs = 0;
    try {
      turn.work = this.#options.open(turn.tenantId);
    } catch (error) {
      this.#hold(turn, error);
      // Looked at again when it may be opened.
      this.#startSoon();
      return false;
    }
    if (turn.work === undefined) this.#turns.delete(turn.tenantId);
    else this.#open += 1;
    return turn.work !== undefined;
  }

  async #run(turn: Turn): Promise<void> {
    const { work } = turn;
    if (work === undefined) return;
    // To the end of the row.
    this.#turns.delete(turn.tenantId);
    this.#turns.set(turn.tenantId, turn);
    turn.running += 1;
    this.#running += 1;
    let isMore = true;
    try {
      isMore = await work.runSlice(this.#stop.signal);
      if (turn.heldUntilMs === 0) turn.failures = 0;
    } catch (error) {
      if (!this.#stop.signal.aborted) this.#hold(turn, error);
    }
    turn.running -= 1;
    this.#running -= 1;
    if (turn.running === 0 && (turn.heldUntilMs > 0 || !isMore)) this.#close(turn);
    await this.#pace.breathe();
    this.#forgetWaiting();
    this.#start();
  }

  /** Opened again when it was held up, or when something came meanwhile. */
  #close(turn: Turn): void {
    if (turn.work === undefined) return;
    this.#open -= 1;
    turn.work.close?.();
    turn.work = undefined;
    if (turn.heldUntilMs === 0 && !turn.hasNews) this.#turns.delete(turn.tenantId);
  }

  #hold(turn: Turn, error: unknown): void {
    const { name, log, onFailure } = this.#options;
    onFailure?.(error);
    // Several slices of one tenant's may fail of the same.
    if (turn.heldUntilMs > 0) return;
    log("error", `${name} is held up and will be tried again`, { reason: reasonOf(error) });
    turn.heldUntilMs = performance.now() + Math.min(maxRetryMs, firstRetryMs * 2 ** turn.failures);
    turn.failures += 1;
  }

  /** A server that stops leaves what has not begun to the next one. */
  #forgetWaiting(): void {
    if (!this.#stop.signal.aborted) return;
    for (const turn of this.#turns.values()) {
      if (turn.running > 0) continue;
      this.#close(turn);
      this.#turns.delete(turn.tenantId);
    }
    this.#endIfDone();
  }

  #endIfDone(): void {
    if (this.#turns.size > 0) return;
    this.#busy?.resolve();
    this.#busy = undefined;
  }
}
