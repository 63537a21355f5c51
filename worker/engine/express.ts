/**
 * Short ways for tenants that ask for little, beside one that keeps the engine busy. A step takes as long as its rows, so
 * whoever has one short prompt would wait for a whole step of the other's, and then for one that both are in:
 *
 *   its rows are in a step without those of busy tenants, every other step at most: many such requests do not stop them
 *   a busy tenant alone gets fewer prompt rows in a step, while another one has been there lately
 */
import type { EngineLimits } from "./limits.ts";
import type { Request } from "./request.ts";

/** A tenant with so many requests in progress keeps the engine busy. */
const busyRequests = 4;
/**
 * Part of the prompt rows beside decodes that busy tenants get while another one is there. With all of them they get 5 to
 * 10 % more done, and the other's p99 to the first token is 1.8 times what it is alone instead of 1.4 (`bench light-tenant`).
 */
const sharedPart = 1 / 2;
/** A tenant counts as there so long after its last request. */
const lateMs = 60_000;

type Limits = Pick<EngineLimits, "prefillTokensBesideDecodes">;

export class Express {
  private readonly maxRows: number;
  private readonly clock: () => number;
  private wasExpress = false;
  /** The two tenants that came last: enough to know whether there was another one. */
  private latest = { owner: -1, atMs: Number.NEGATIVE_INFINITY };
  private other = { owner: -1, atMs: Number.NEGATIVE_INFINITY };

  constructor({ prefillTokensBesideDecodes }: Limits, clock: () => number) {
    this.maxRows = prefillTokensBesideDecodes;
    this.clock = clock;
  }

  /** Requests that the next step leaves out. To be asked once for each step. @param requests in progress */
  leftOut(requests: readonly Request[]): ReadonlySet<Request> {
    const counts = countByOwner(requests);
    const busy = requests.filter((request) => isBusy(request, counts));
    const isExpress = !this.wasExpress && busy.length > 0 && requests.some((request) => this.isShort(request, counts));
    this.wasExpress = isExpress;
    return new Set(isExpress ? busy : []);
  }

  /** Prompt rows of the next step, of so many that there is room for. @param requests in progress */
  promptRows(requests: readonly Request[], rowCount: number): number {
    const prefilling = requests.filter((request) => !request.decoding);
    for (const request of prefilling) this.note(request);
    if (this.clock() - this.other.atMs > lateMs) return rowCount;
    const counts = countByOwner(requests);
    if (!prefilling.every((request) => isBusy(request, counts))) return rowCount;
    return Math.max(1, Math.floor(Math.min(rowCount, this.maxRows) * sharedPart));
  }

  private note({ owner: { number: owner } }: Request): void {
    if (this.latest.owner !== owner) this.other = this.latest;
    this.latest = { owner, atMs: this.clock() };
  }

  /** Of a tenant that asks for little, with a prompt that one step ends. */
  private isShort(request: Request, counts: ReadonlyMap<number, number>): boolean {
    return !request.decoding && request.missingTokens <= this.maxRows && !isBusy(request, counts);
  }
}

function isBusy({ owner }: Request, counts: ReadonlyMap<number, number>): boolean {
  return (counts.get(owner.number) ?? 0) >= busyRequests;
}

function countByOwner(requests: readonly Request[]): ReadonlyMap<number, number> {
  const counts = new Map<number, number>();
  for (const { owner } of requests) counts.set(owner.number, (counts.get(owner.number) ?? 0) + 1);
  return counts;
}
