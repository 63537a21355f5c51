/**
 * Keeps the latency of a tenant that asks for little low while another tenant asks for much. A step takes as long as
 * its rows and what they read. Without this, a short prompt would wait for a whole step of the other tenant and then
 * for a step that both are in, and each token of its answer would wait for a step full of the other tenant's prompt.
 * Requests are *heavy* when their tenant has many of them in progress, or when they have a long prompt to compute, or any
 * prompt that is only prepared; all others are *light*:
 *
 *   a light prompt is in a step without heavy requests, every other step at most: many such prompts do not stop them
 *   heavy work is followed by steps of the light requests alone, as long as these are few
 *   heavy prompts get less of a step while another tenant has been there lately, since its next request may come
 *   just after the step has begun
 */
import { nobody } from "../contract/owners.ts";
import type { EngineLimits } from "./limits.ts";
import type { Request } from "./request.ts";

/** A tenant with so many requests in progress counts as one that keeps the engine busy. */
const busyRequests = 4;
/**
 * Part of the prompt rows beside decodes that heavy prompts get while another tenant is active: beside its requests,
 * and when they are of a tenant with many. If they got all rows, they would get 5 to 10 % more done, and the other
 * tenant's p99 to the first token would be 1.8 times what it is alone instead of 1.4 times (`bench light-tenant`).
 */
const sharedPart = 1 / 2;
/** For so many milliseconds after its last request a tenant counts as active. */
const lateMs = 60_000;
/** Light requests get steps of their own while there are few, because then these steps are short. */
const isFew = ({ length }: readonly Request[]): boolean => length > 0 && length <= 8;
/**
 * Steps of their own that light requests earn by a full step of heavy work where it is not known how long that takes, and
 * how many they may save: no heavy step stands within an answer that is that short. They earn as much time as heavy work
 * took, so beside streams without end it keeps about half of the time.
 */
const [earnedSteps, savedSteps] = [10, 8];

/**
 * Steps of one decode that a step of heavy prompts takes as long as, at most, while another tenant is active. A row costs
 * a CPU the same in steps of 16 rows and of 128, and a short answer takes about a dozen such steps (`bench stalls`).
 */
const heavyStepDecodes = 6;

type Limits = Pick<EngineLimits, "prefillTokensBesideDecodes" | "decodeStepRows">;

export class Fairness {
  readonly #maxRows: number;
  /** Rows of heavy prompts in a step, at most, while another tenant is active. */
  readonly #mostHeavyRows: number;
  /** Rows of heavy work that earn a step of the light requests. */
  readonly #decodeStepRows: number;
  readonly #clock: () => number;
  /** Heavy requests of the step that is planned. */
  #heavy: ReadonlySet<Request> = new Set();
  #lastWasLight = false;
  /** Steps that light requests may have for themselves. */
  #lightSteps = 0;
  /** The two tenants whose prompts were seen last, which is enough to know whether a second tenant is active. */
  #latest = { owner: -1, atMs: Number.NEGATIVE_INFINITY };
  #other = { owner: -1, atMs: Number.NEGATIVE_INFINITY };

  constructor({ prefillTokensBesideDecodes, decodeStepRows }: Limits, clock: () => number) {
    this.#maxRows = prefillTokensBesideDecodes;
    this.#mostHeavyRows = Math.round((decodeStepRows ?? Number.POSITIVE_INFINITY) * heavyStepDecodes);
    this.#decodeStepRows = decodeStepRows ?? prefillTokensBesideDecodes / earnedSteps;
    this.#clock = clock;
  }

  /** Another tenant than the last one has been there lately. */
  get isShared(): boolean {
    return this.#clock() - this.#other.atMs <= lateMs;
  }

  /** Requests that the next step leaves out. To be asked once for each step. @param requests in progress */
  leftOut(requests: readonly Request[]): ReadonlySet<Request> {
    const heavy = this.#heavyOf(requests);
    this.#heavy = heavy;
    // A request that waits for its mask cannot be in the step.
    const light = lightBeside(requests, heavy).filter(({ awaitsMask }) => !awaitsMask);
    const isLights = this.#lightSteps > 0 && isFew(light) && this.#isMuch(heavy);
    const isForLightPrompt = !this.#lastWasLight && light.some((request) => this.#isShort(request));
    if (isLights) this.#lightSteps -= 1;
    this.#lastWasLight = isForLightPrompt;
    return isLights || isForLightPrompt ? heavy : new Set();
  }

  /** Prompt rows of the next step, of so many that there is room for. @param requests in progress */
  promptRows(requests: readonly Request[], rowCount: number): number {
    const prefilling = requests.filter((request) => !request.decoding);
    for (const request of prefilling) this.#note(request);
    if (!this.isShared || prefilling.length === 0) return rowCount;
    const heavy = prefilling.filter((request) => this.#heavy.has(request));
    const light = prefilling.filter((request) => !this.#heavy.has(request));
    return Math.min(rowCount, this.#heavyRows(requests, heavy, rowCount) + this.#lightRows(light));
  }

  #heavyRows(requests: readonly Request[], prompts: readonly Request[], rowCount: number): number {
    if (prompts.length === 0) return 0;
    const counts = countByOwner(requests);
    const isHalved = lightBeside(requests, this.#heavy).length > 0 || prompts.every((each) => isBusy(each, counts));
    const rows = Math.floor(Math.min(rowCount, this.#maxRows) * (isHalved ? sharedPart : 1));
    return Math.max(1, Math.min(rows, this.#mostHeavyRows));
  }

  /** Short prompts, and the ends of long ones, are not to be a full step together when they are one tenant's. */
  #lightRows(prompts: readonly Request[]): number {
    const tenants = Map.groupBy(prompts, ({ owner }) => owner.number).values();
    return tenants.reduce((sum, theirs) => sum + Math.min(missingOf(theirs), this.#maxRows), 0);
  }

  /** What is in the next step. @param workOf a request's rows in it, in prompt rows without context */
  noteStep(workOf: (request: Request) => number): void {
    const work = this.#heavy.values().reduce((sum, request) => sum + workOf(request), 0);
    this.#lightSteps = Math.min(savedSteps, this.#lightSteps + Math.floor(work / this.#decodeStepRows));
  }

  #heavyOf(requests: readonly Request[]): ReadonlySet<Request> {
    const counts = countByOwner(requests);
    return new Set(requests.filter((request) => isBusy(request, counts) || this.#isLong(request)));
  }

  /** Nobody waits for the first token of what is only prepared, so that its end is no short prompt. */
  #isLong(request: Request): boolean {
    if (request.decoding) return false;
    const isPrepared = request.openRun === undefined && Number.isFinite(this.#mostHeavyRows);
    return isPrepared || request.missingTokens > this.#maxRows;
  }

  #note({ owner: { number: owner } }: Request): void {
    // What nobody asks for, as a start's rehearsal, is no other tenant.
    if (owner === nobody.number) return;
    if (this.#latest.owner !== owner) this.#other = this.#latest;
    this.#latest = { owner, atMs: this.#clock() };
  }

  /** Whether a step takes longer with these requests: with prompts of theirs, or many decodes. */
  #isMuch(heavy: ReadonlySet<Request>): boolean {
    return heavy.size * 2 >= this.#maxRows || heavy.values().some(({ decoding }) => !decoding);
  }

  /** A prompt that one step ends. */
  #isShort(request: Request): boolean {
    return !request.decoding && request.missingTokens <= this.#maxRows;
  }
}

/** Requests that are not heavy, of tenants that are not the only one with heavy ones. */
function lightBeside(requests: readonly Request[], heavy: ReadonlySet<Request>): readonly Request[] {
  const owners = new Set(Array.from(heavy, ({ owner }) => owner.number));
  const isBeside = ({ owner }: Request): boolean => owners.size > (owners.has(owner.number) ? 1 : 0);
  return requests.filter((request) => !heavy.has(request) && isBeside(request));
}

function isBusy({ owner }: Request, counts: ReadonlyMap<number, number>): boolean {
  return (counts.get(owner.number) ?? 0) >= busyRequests;
}

function countByOwner(requests: readonly Request[]): ReadonlyMap<number, number> {
  const counts = new Map<number, number>();
  for (const { owner } of requests) counts.set(owner.number, (counts.get(owner.number) ?? 0) + 1);
  return counts;
}

function missingOf(requests: readonly Request[]): number {
  return requests.reduce((sum, { missingTokens }) => sum + missingTokens, 0);
}
