/**
 * Holds tenants to the tokens that may be computed for them in a day and in a month, both in UTC. What is spent is what
 * usage counts, so both say the same, also after a restart. Work that runs has reserved what it may use: what is
 * admitted beside it overruns a budget by no more than the last piece of work that began before the budget was full.
 */
import type { TenantId } from "../../db/ids.ts";
import type { TokenBudget } from "../../db/limits.ts";
import { ApiError } from "../base/errors.ts";
import type { UsageLedger } from "./usage.ts";

export interface BudgetedTenant extends TokenBudget {
  readonly tenantId: TenantId;
}

/** A budget as it stands. */
export interface BudgetStanding {
  readonly period: "day" | "month";
  /** null: there is no budget for this period. */
  readonly limit: number | null;
  readonly used: number;
  /** When the next period begins, in Unix milliseconds. */
  readonly resetsAt: number;
}

/** What work that runs has reserved may come back at any time; how long to wait before looking again. */
const reservedWaitMs = 1_000;

export class TokenBudgets {
  readonly #usage: Pick<UsageLedger, "spentBy">;
  readonly #reserved = new Map<TenantId, number>();
  readonly #nowMs: () => number;

  constructor(usage: Pick<UsageLedger, "spentBy">, nowMs: () => number = Date.now) {
    this.#usage = usage;
    this.#nowMs = nowMs;
  }

  standing({ tenantId, tokensPerDay, tokensPerMonth }: BudgetedTenant): readonly BudgetStanding[] {
    const { day, month } = this.#usage.spentBy(tenantId);
    const now = new Date(this.#nowMs());
    const [year, monthIndex] = [now.getUTCFullYear(), now.getUTCMonth()];
    const tomorrow = Date.UTC(year, monthIndex, now.getUTCDate() + 1);
    return [
      { period: "day", limit: tokensPerDay, used: day, resetsAt: tomorrow },
      { period: "month", limit: tokensPerMonth, used: month, resetsAt: Date.UTC(year, monthIndex + 1) },
    ];
  }

  /**
   * Milliseconds to wait before work may begin, when work that runs has reserved all that is left.
   * @throws ApiError quota_exceeded
   */
  waitMs(tenant: BudgetedTenant): number {
    if (tenant.tokensPerDay === null && tenant.tokensPerMonth === null) return 0;
    const reserved = this.#reserved.get(tenant.tenantId) ?? 0;
    let isReserved = false;
    let spent: (BudgetStanding & { readonly limit: number }) | undefined;
    for (const standing of this.standing(tenant)) {
      const { limit, used } = standing;
      if (limit === null) continue;
      // Of two budgets that are used up, the month's ends last.
      if (used >= limit) spent = { ...standing, limit };
      isReserved ||= used + reserved >= limit;
    }
    if (spent !== undefined) throw spentError(spent, this.#nowMs());
    return isReserved ? reservedWaitMs : 0;
  }

  /** @throws ApiError quota_exceeded; rate_limited when all that is left is reserved */
  require(tenant: BudgetedTenant): void {
    const waitMs = this.waitMs(tenant);
    if (waitMs === 0) return;
    const message =
      "Requests that run have reserved what is left of the tenant's tokens. Try again when they have ended.";
    throw new ApiError("rate_limited", { message, retryAfterS: Math.ceil(waitMs / 1000) });
  }

  /** @returns gives the tokens back; to be called once */
  reserve({ tenantId }: BudgetedTenant, tokens: number): () => void {
    this.#reserved.set(tenantId, (this.#reserved.get(tenantId) ?? 0) + tokens);
    return () => {
      const left = (this.#reserved.get(tenantId) ?? 0) - tokens;
      if (left > 0) this.#reserved.set(tenantId, left);
      else this.#reserved.delete(tenantId);
    };
  }
}

function spentError({ period, limit, resetsAt }: BudgetStanding, nowMs: number): ApiError {
  const retryAfterS = Math.max(1, Math.ceil((resetsAt - nowMs) / 1000));
  const next = `${new Date(resetsAt).toISOString().slice(0, 16)}Z`;
  const message = `The tenant has used its ${limit} tokens of this ${period}. The next ${period} begins at ${next}.`;
  return new ApiError("quota_exceeded", { message, retryAfterS });
}
