/** What was taken of a limit per minute. It comes back evenly, so a full limit is there again after a minute of rest. */
export class Allowance {
  #taken = 0;
  #atMs = 0;

  remaining(limit: number, nowMs: number): number {
    this.#leak(limit, nowMs);
    return limit - this.#taken;
  }

  /** Below zero what remains is a debt. A negative amount is given back. */
  take(amount: number, limit: number, nowMs: number): void {
    this.#leak(limit, nowMs);
    this.#taken = Math.max(0, this.#taken + amount);
  }

  /** Time until so much remains. */
  waitMs(amount: number, limit: number, nowMs: number): number {
    return Math.max(0, amount - this.remaining(limit, nowMs)) / (limit / 60_000);
  }

  #leak(limit: number, nowMs: number): void {
    this.#taken = Math.max(0, this.#taken - ((nowMs - this.#atMs) * limit) / 60_000);
    this.#atMs = nowMs;
  }
}
