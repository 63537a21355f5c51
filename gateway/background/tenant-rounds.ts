/**
 * Runs the background work of many tenants in a few lanes. Each tenant gets one slice in a round; a tenant whose work has
 * to wait is passed over until then, and its lane serves the others. Only the ids of tenants with work are kept here:
 * the work itself is in the database, and is opened when there is room.
 */
import type { TenantId } from "../../db/ids.ts";
import type { Log } from "../base/log.ts";
import { Pace, yieldToRequests } from "../base/pace.ts";
import { reasonOf } from "./background-loop.ts";

/** The work of one tenant. */
export interface TenantWork {
  /**
   * When the next slice may begin, by performance.now(); absent: at once. Infinite: only after a running slice has ended.
   */
  readyAtMs?(): number;
  /** Does one slice of the work. When it throws, the work is opened anew a little later. @returns false when nothing is left */
  runSlice(signal: AbortSignal): Promise<boolean>;
  /** Called when none of its slices runs and none will run. */
  close?(): void;
}

export interface TenantRoundsOptions {
  /** The name that the log shows. */
  readonly name: string;
  readonly log: Log;
  /** Slices that run at the same time. */
  readonly lanes: number;
  /** Additional lanes for tenants of which no slice runs, so that they do not wait for other tenants' long slices. */
  readonly spareLanes?: number;
  /** Slices of one tenant that run at the same time; as many as there are lanes when absent. */
  readonly slicesPerTenant?: number;
  /** The most tenants whose work is open at the same time. */
  readonly maxOpen: number;
  /** Opens the work of a tenant. undefined: it has none. */
  readonly open: (tenantId: TenantId) => TenantWork | undefined;
  /** Called with what a slice threw, before the slice is tried again. */
  readonly onFailure?: (error: unknown) => void;
}

/** A tenant in the rounds. */
interface Member {
  readonly tenantId: TenantId;
  work: TenantWork | undefined;
  running: number;
  /** New work came after the tenant's work was opened: it is looked for before the tenant is forgotten. */
  hasNews: boolean;
  failures: number;
  /**
   * After a failed slice, nothing begins before the running slices have ended, nor before this time
   * (performance.now()).
   */
  heldUntilMs: number;
}

const firstRetryMs = 500;
const maxRetryMs = 30_000;

export class TenantRounds {
  readonly #options: TenantRoundsOptions;
  readonly #stop = new AbortController();
  readonly #pace = new Pace(yieldToRequests);
  /** Tenants with work, in the order in which they are served next. */
  readonly #members = new Map<TenantId, Member>();
  #running = 0;
  #open = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #starting: Promise<void> | undefined;
  /** Resolves for callers of `idle` when all work is done; undefined: there is no work. */
  #busy: ReturnType<typeof Promise.withResolvers<void>> | undefined;

  constructor(options: TenantRoundsOptions) {
    this.#options = options;
  }

  /** Call when the tenant may have work, or may go on with it. */
  offer(tenantId: TenantId): void {
    if (this.#stop.signal.aborted) return;
    const member = this.#members.get(tenantId);
    if (member !== undefined) member.hasNews = true;
    else {
      this.#busy ??= Promise.withResolvers<void>();
      this.#members.set(tenantId, {
        tenantId,
        work: undefined,
        running: 0,
        hasNews: false,
        failures: 0,
        heldUntilMs: 0,
      });
    }
    this.#startSoon();
  }

  get isIdle(): boolean {
    return this.#busy === undefined;
  }

  /** Resolves when no tenant has work left, or after `stop`. */
  async idle(): Promise<void> {
    await this.#busy?.promise;
  }

  /** Starts no further slice. Resolves when the running slices have ended. */
  async stop(): Promise<void> {
    this.#stop.abort();
    clearTimeout(this.#timer);
    this.#forgetWaiting();
    await this.idle();
  }

  /** Starts after the request that offered the work is answered. */
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

  /** The tenant that is served next, or the milliseconds until one may be served. */
  #next(): Member | number {
    const { lanes, spareLanes = 0, slicesPerTenant = lanes + spareLanes } = this.#options;
    if (this.#running >= lanes + spareLanes) return Number.POSITIVE_INFINITY;
    const nowMs = performance.now();
    let soonestMs = Number.POSITIVE_INFINITY;
    for (const member of this.#members.values()) {
      if (member.running > 0 && (this.#running >= lanes || member.heldUntilMs > 0)) continue;
      if (member.running >= slicesPerTenant) continue;
      if (this.#readyMs(member) <= nowMs && member.work === undefined && !this.#tryOpen(member)) continue;
      const waitMs = this.#readyMs(member) - nowMs;
      if (waitMs <= 0) return member;
      soonestMs = Math.min(soonestMs, waitMs);
    }
    return soonestMs;
  }

  #readyMs({ work, heldUntilMs }: Member): number {
    if (work !== undefined) return Math.max(heldUntilMs, work.readyAtMs?.() ?? 0);
    return this.#open < this.#options.maxOpen ? heldUntilMs : Number.POSITIVE_INFINITY;
  }

  /**
   * Opens the tenant's work.
   * @returns false when the tenant has none, which forgets it, or when its work is held back
   */
  #tryOpen(member: Member): boolean {
    member.hasNews = false;
    member.heldUntilMs = 0;
    try {
      member.work = this.#options.open(member.tenantId);
    } catch (error) {
      this.#hold(member, error);
      // The tenant is tried again at the time when its work may be opened.
      this.#startSoon();
      return false;
    }
    if (member.work === undefined) this.#members.delete(member.tenantId);
    else this.#open += 1;
    return member.work !== undefined;
  }

  async #run(member: Member): Promise<void> {
    const { work } = member;
    if (work === undefined) return;
    // The tenant moves to the end of the order.
    this.#members.delete(member.tenantId);
    this.#members.set(member.tenantId, member);
    member.running += 1;
    this.#running += 1;
    let isMore = true;
    try {
      isMore = await work.runSlice(this.#stop.signal);
      if (member.heldUntilMs === 0) member.failures = 0;
    } catch (error) {
      if (!this.#stop.signal.aborted) this.#hold(member, error);
    }
    member.running -= 1;
    this.#running -= 1;
    if (member.running === 0 && (member.heldUntilMs > 0 || !isMore)) this.#close(member);
    await this.#pace.breathe();
    this.#forgetWaiting();
    this.#start();
  }

  /** Closes the tenant's work. It is opened again if it was held back, or if new work came meanwhile. */
  #close(member: Member): void {
    if (member.work === undefined) return;
    this.#open -= 1;
    member.work.close?.();
    member.work = undefined;
    if (member.heldUntilMs === 0 && !member.hasNews) this.#members.delete(member.tenantId);
  }

  #hold(member: Member, error: unknown): void {
    const { name, log, onFailure } = this.#options;
    onFailure?.(error);
    // Several running slices of one tenant may fail for the same reason; that counts as one failure.
    if (member.heldUntilMs > 0) return;
    log("error", `${name} is held up and will be tried again`, { reason: reasonOf(error) });
    member.heldUntilMs = performance.now() + Math.min(maxRetryMs, firstRetryMs * 2 ** member.failures);
    member.failures += 1;
  }

  /** When the server stops, work that has not begun is left to the next start. */
  #forgetWaiting(): void {
    if (!this.#stop.signal.aborted) return;
    for (const member of this.#members.values()) {
      if (member.running > 0) continue;
      this.#close(member);
      this.#members.delete(member.tenantId);
    }
    this.#endIfDone();
  }

  #endIfDone(): void {
    if (this.#members.size > 0) return;
    this.#busy?.resolve();
    this.#busy = undefined;
  }
}
