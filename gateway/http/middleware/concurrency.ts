/** How many requests of one tenant run at the same time, of those that share a limiter. */
import { ApiError } from "../../base/errors.ts";
import { type Hold, holdUntil } from "../../base/hold.ts";

export class ConcurrencyLimiter {
  readonly #running = new Map<string, number>();
  readonly #perTenant: number;

  constructor(perTenant: number) {
    this.#perTenant = perTenant;
  }

  /** The request runs until its hold ends. @throws ApiError concurrency_limited */
  enter(tenantId: string): Hold {
    const running = this.#running.get(tenantId) ?? 0;
    if (running >= this.#perTenant) {
      throw new ApiError("concurrency_limited", {
        message: `At most ${this.#perTenant} requests of this kind run at the same time for a tenant.`,
      });
    }
    this.#running.set(tenantId, running + 1);
    let left = false;
    return holdUntil(() => {
      if (left) return;
      left = true;
      const now = (this.#running.get(tenantId) ?? 1) - 1;
      if (now === 0) this.#running.delete(tenantId);
      else this.#running.set(tenantId, now);
    });
  }

  running(tenantId: string): number {
    return this.#running.get(tenantId) ?? 0;
  }
}
