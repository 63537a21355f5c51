/** Slows down who tries keys out: so many sign-ins of an address may fail in a minute, and none is looked at then. */
import { LRUCache } from "lru-cache";
import { ApiError } from "../base/errors.ts";

const minuteMs = 60_000;

interface Failures {
  readonly sinceMs: number;
  count: number;
}

export interface SignInFailureOptions {
  readonly mostAMinute: number;
  /** Addresses that are remembered; whose failure is longest ago is forgotten first. */
  readonly addresses: number;
  readonly nowMs: () => number;
}

export class SignInFailures {
  readonly #options: SignInFailureOptions;
  readonly #failures: LRUCache<string, Failures>;

  constructor(options: SignInFailureOptions) {
    this.#options = options;
    this.#failures = new LRUCache({ max: options.addresses });
  }

  /** @throws ApiError rate_limited, until a minute after the first failure */
  check(address: string): void {
    const failed = this.#current(address);
    if (failed === undefined || failed.count < this.#options.mostAMinute) return;
    const retryAfterS = Math.ceil((failed.sinceMs + minuteMs - this.#options.nowMs()) / 1_000);
    throw new ApiError("rate_limited", { retryAfterS, message: "Too many sign-ins failed. Try again in a minute." });
  }

  note(address: string): void {
    const failed = this.#current(address) ?? { sinceMs: this.#options.nowMs(), count: 0 };
    failed.count += 1;
    this.#failures.set(networkOf(address), failed);
  }

  #current(address: string): Failures | undefined {
    const failed = this.#failures.get(networkOf(address));
    return failed === undefined || this.#options.nowMs() - failed.sinceMs >= minuteMs ? undefined : failed;
  }
}

/** Who has one IPv6 address has all of its /64. */
function networkOf(address: string): string {
  if (!address.includes(":") || address.includes(".")) return address;
  const [head = "", tail = ""] = address.split("::");
  const [before, after] = [head.split(":"), tail.split(":")];
  const zeros = Array.from({ length: Math.max(0, 8 - before.length - after.length) }, () => "0");
  return (address.includes("::") ? [...before, ...zeros, ...after] : before).slice(0, 4).join(":");
}
