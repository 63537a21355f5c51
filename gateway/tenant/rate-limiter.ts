/**
 * Holds callers to their limits. A request is admitted when its tenant and its key both have a request, a concurrency
 * slot and some tokens left. The request's first run reserves the tokens that it may use, or is refused. Later runs of
 * the same request are only counted; if they lead to a debt, it has to be paid off before the next request. When a run
 * ends, its reservation is replaced by what it really used.
 */
import { LRUCache } from "lru-cache";
import type { RateLimits } from "../../db/limits.ts";
import { ApiError } from "../base/errors.ts";
import type { BudgetedTenant, TokenBudgets } from "./token-budgets.ts";

/** A tenant or an API key, with its limits. */
export interface LimitedOwner {
  readonly id: string;
  readonly kind: "tenant" | "API key";
  readonly limits: RateLimits;
  /** What the tenant may use of its budgets of tokens by day and month; API keys have none. */
  readonly budget?: BudgetedTenant;
}

/** What remains of a limit, such as requests a minute; of several limits, the tightest one. */
export interface Standing {
  readonly limit: number;
  readonly remaining: number;
  /** Milliseconds until the whole limit is available again. */
  readonly resetMs: number;
}

interface Spending {
  readonly requests: Allowance;
  readonly tokens: Allowance;
  readonly looks: Allowance;
}

/**
 * A caller with a limit on requests may poll for the state of running work this often a minute: ten times for each
 * request of its limit, and at least 600 times (ten a second).
 */
const looksPerRequest = 10;
const minLooks = 600;
/** Background work begins only while this part of a minute's tokens is left, so that requests go first. */
const backgroundPart = 1 / 2;

interface Account extends LimitedOwner, Spending {}

/** Tokens that are reserved for a piece of work. */
export interface Reservation {
  /** Call once, with the tokens that the work really used. */
  settle(tokens: number): void;
}

export class RateLimiter {
  readonly #spending: LRUCache<string, Spending>;
  readonly #running = new Map<string, number>();
  readonly #admissions = new Map<string, Admission>();
  readonly #nowMs: () => number;
  readonly #budgets: TokenBudgets | undefined;

  /**
   * @param maxOwners tenants and keys whose spending is remembered from their last use
   * @param budgets undefined: tenants have no budgets
   */
  constructor(maxOwners: number, nowMs: () => number = () => performance.now(), budgets?: TokenBudgets) {
    this.#spending = new LRUCache({ max: maxOwners });
    this.#nowMs = nowMs;
    this.#budgets = budgets;
  }

  /** @throws ApiError concurrency_limited, rate_limited */
  admit(requestId: string, owners: readonly LimitedOwner[]): Admission {
    const accounts = owners.map((owner) => this.#account(owner));
    const nowMs = this.#nowMs();
    for (const { id, kind, limits } of accounts) {
      if (limits.concurrency === null || this.running(id) < limits.concurrency) continue;
      const message = `The ${kind} runs as many requests at the same time as it may: ${limits.concurrency}.`;
      throw new ApiError("concurrency_limited", { message });
    }
    for (const account of accounts) {
      requireRoom(account, "requests", 1, nowMs);
      requireRoom(account, "tokens", 1, nowMs);
    }
    for (const { limits, requests } of accounts) {
      if (limits.requestsPerMinute !== null) requests.take(1, limits.requestsPerMinute, nowMs);
    }
    for (const { id } of accounts) this.#running.set(id, this.running(id) + 1);
    const admission = new Admission(accounts, this.#nowMs, this.#budgets, () => {
      this.#admissions.delete(requestId);
      for (const { id } of accounts) this.#leave(id);
    });
    this.#admissions.set(requestId, admission);
    return admission;
  }

  /**
   * Counts a poll for the state of running work. A poll uses no concurrency slot and no request.
   * @throws ApiError rate_limited
   */
  look(owners: readonly LimitedOwner[]): void {
    const accounts = owners.map((owner) => this.#account(owner));
    const nowMs = this.#nowMs();
    for (const account of accounts) requireRoom(account, "looks", 1, nowMs);
    for (const account of accounts) {
      const limit = perMinute(account.limits, "looks");
      if (limit !== null) account.looks.take(1, limit, nowMs);
    }
  }

  /** Call before background work. @throws ApiError rate_limited, with the time to wait; quota_exceeded */
  requireTokens(owner: LimitedOwner): void {
    if (owner.budget !== undefined) this.#budgets?.require(owner.budget);
    const { tokensPerMinute: limit } = owner.limits;
    if (limit !== null) requireRoom(this.#account(owner), "tokens", Math.ceil(limit * backgroundPart), this.#nowMs());
  }

  /**
   * Charges tokens that were computed for the owner outside of admitted work. A debt is paid off before the next
   * request.
   */
  spend(owner: LimitedOwner, tokens: number): void {
    const { tokensPerMinute: limit } = owner.limits;
    if (limit !== null) this.#account(owner).tokens.take(tokens, limit, this.#nowMs());
  }

  /**
   * The admission that a piece of work belongs to.
   * @param workId the admitted request's id, alone or followed by a point and more
   */
  admissionOf(workId: string): Admission | undefined {
    const [requestId = ""] = workId.split(".", 1);
    return this.#admissions.get(requestId);
  }

  /** The state of the tightest limit of this kind; undefined: there is no such limit. */
  standing(owners: readonly LimitedOwner[], kind: "requests" | "tokens"): Standing | undefined {
    const nowMs = this.#nowMs();
    let tightest: Standing | undefined;
    for (const owner of owners) {
      const limit = perMinute(owner.limits, kind);
      if (limit === null) continue;
      const allowance = this.#account(owner)[kind];
      const remaining = Math.max(0, Math.floor(allowance.remaining(limit, nowMs)));
      if (tightest !== undefined && tightest.remaining <= remaining) continue;
      tightest = { limit, remaining, resetMs: allowance.waitMs(limit, limit, nowMs) };
    }
    return tightest;
  }

  running(ownerId: string): number {
    return this.#running.get(ownerId) ?? 0;
  }

  #leave(ownerId: string): void {
    const left = this.running(ownerId) - 1;
    if (left > 0) this.#running.set(ownerId, left);
    else this.#running.delete(ownerId);
  }

  #account(owner: LimitedOwner): Account {
    let spending = this.#spending.get(owner.id);
    if (spending === undefined) {
      spending = { requests: new Allowance(), tokens: new Allowance(), looks: new Allowance() };
      this.#spending.set(owner.id, spending);
    }
    return { ...owner, ...spending };
  }
}

/** A request that was admitted and still runs. */
export class Admission {
  readonly #accounts: readonly Account[];
  readonly #nowMs: () => number;
  readonly #budgets: TokenBudgets | undefined;
  readonly #budget: BudgetedTenant | undefined;
  readonly #onEnd: (() => void)[];
  #begun = false;
  #ended = false;
  #usedTokens = 0;

  constructor(accounts: readonly Account[], nowMs: () => number, budgets: TokenBudgets | undefined, onEnd: () => void) {
    this.#accounts = accounts;
    this.#nowMs = nowMs;
    this.#budgets = budgets;
    this.#budget = accounts.find(({ budget }) => budget !== undefined)?.budget;
    this.#onEnd = [onEnd];
  }

  /** Tokens of the runs that have ended. */
  get usedTokens(): number {
    return this.#usedTokens;
  }

  /** Calls back once the request has ended; at once when it has. */
  whenEnded(callback: () => void): void {
    if (this.#ended) callback();
    else this.#onEnd.push(callback);
  }

  /**
   * Reserves tokens for a run. A run larger than the limit waits until the whole limit is available, so that it can run
   * at all. A request that only reads or administers makes no run, and needs no budget.
   * @throws ApiError rate_limited, quota_exceeded, only for the first run of the request
   */
  reserve(tokens: number): Reservation {
    const nowMs = this.#nowMs();
    if (!this.#begun) {
      if (this.#budget !== undefined) this.#budgets?.require(this.#budget);
      for (const account of this.#accounts) requireRoom(account, "tokens", tokens, nowMs);
    }
    this.#begun = true;
    this.#take((limit) => Math.min(tokens, limit));
    const giveBack = this.#budget === undefined ? undefined : this.#budgets?.reserve(this.#budget, tokens);
    return {
      settle: (used) => {
        giveBack?.();
        this.#usedTokens += used;
        this.#take((limit) => used - Math.min(tokens, limit));
      },
    };
  }

  /** Milliseconds until the request's tenant and key both have tokens left. @throws ApiError quota_exceeded */
  tokensWaitMs(): number {
    const nowMs = this.#nowMs();
    const waits = this.#accounts.map(({ limits: { tokensPerMinute }, tokens }) =>
      tokensPerMinute === null ? 0 : tokens.waitMs(1, tokensPerMinute, nowMs),
    );
    const budgetMs = this.#budget === undefined ? 0 : (this.#budgets?.waitMs(this.#budget) ?? 0);
    return Math.max(budgetMs, ...waits);
  }

  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    for (const callback of this.#onEnd) callback();
  }

  #take(amount: (limit: number) => number): void {
    const nowMs = this.#nowMs();
    for (const { limits, tokens } of this.#accounts) {
      const { tokensPerMinute: limit } = limits;
      if (limit !== null) tokens.take(amount(limit), limit, nowMs);
    }
  }
}

type LimitKind = keyof Spending;

function perMinute({ requestsPerMinute, tokensPerMinute }: RateLimits, kind: LimitKind): number | null {
  if (kind === "tokens") return tokensPerMinute;
  if (kind === "requests" || requestsPerMinute === null) return requestsPerMinute;
  return Math.max(minLooks, looksPerRequest * requestsPerMinute);
}

function requireRoom(account: Account, kind: LimitKind, amount: number, nowMs: number): void {
  const limit = perMinute(account.limits, kind);
  if (limit === null) return;
  const waitMs = account[kind].waitMs(Math.min(amount, limit), limit, nowMs);
  if (waitMs <= 0) return;
  const retryAfterS = Math.ceil(waitMs / 1000);
  const what = kind === "looks" ? "reads of single objects" : kind;
  const message = `The ${account.kind} has reached its limit of ${limit} ${what} a minute. Try again in ${retryAfterS} s.`;
  throw new ApiError("rate_limited", { message, retryAfterS });
}

/**
 * How much of a limit per minute is used. It refills evenly, so a limit that was used up is full again after one minute
 * without use.
 */
class Allowance {
  #taken = 0;
  #atMs = 0;

  remaining(limit: number, nowMs: number): number {
    this.#leak(limit, nowMs);
    return limit - this.#taken;
  }

  /** Takes an amount; a negative amount is given back. What remains may fall below zero, which is a debt. */
  take(amount: number, limit: number, nowMs: number): void {
    this.#leak(limit, nowMs);
    this.#taken = Math.max(0, this.#taken + amount);
  }

  /** Milliseconds until this amount is available. */
  waitMs(amount: number, limit: number, nowMs: number): number {
    return Math.max(0, amount - this.remaining(limit, nowMs)) / (limit / 60_000);
  }

  #leak(limit: number, nowMs: number): void {
    this.#taken = Math.max(0, this.#taken - ((nowMs - this.#atMs) * limit) / 60_000);
    this.#atMs = nowMs;
  }
}
