/**
 * The requests that wait for a worker. Each tenant has a line, first come first served, in which a request that comes
 * back from a worker has its old place again. Between the lines goes deficit round robin, counted in tokens (Shreedhar
 * and Varghese, 1996). The cost of a request is known only while it runs, so a tenant is served while it has credit and
 * pays afterwards. When no tenant that could be served has credit, every line gets the credit of another round. Credit
 * and debt end with the line. Background work has lines of its own, which are served only when no other request can run.
 */
import type { WorkOwner } from "./request/request.ts";
export interface FairQueueBounds {
  /** Bounds on the items of all tenants together, and on their tokens. */
  readonly maxItems: number;
  readonly maxTokens: number;
}

/** Share of the queue that one tenant may fill. */
const tenantShare = 1 / 4;
/** Tokens of credit that a line gets in a round. */
const quantumTokens = 512;
/** Items of a line that are tried when the ones before them cannot run yet. */
const lookAhead = 16;

interface Line<Item> {
  readonly background: boolean;
  items: Item[];
  tokens: number;
  creditTokens: number;
}

/** Who owns a line: a tenant's requests and its background work wait in two lines. */
export interface LineOwner {
  readonly tenantId: WorkOwner;
  readonly background?: boolean | undefined;
}

export interface Waiting extends LineOwner {
  readonly tokens: number;
  /** Greater for an item that came later. */
  readonly arrival: number;
}

const lineName = ({ tenantId, background }: LineOwner): string => (background ? `${tenantId} background` : tenantId);

export class FairQueue<Item extends Waiting> {
  /** Ordered by when they were served last, longest ago first. */
  readonly #lines = new Map<string, Line<Item>>();
  readonly #bounds: FairQueueBounds;
  #size = 0;
  #tokens = 0;

  constructor(bounds: FairQueueBounds) {
    this.#bounds = bounds;
  }

  get size(): number {
    return this.#size;
  }

  /** Whether an item of this owner waits. */
  isWaiting(owner: LineOwner): boolean {
    return this.#lines.has(lineName(owner));
  }

  /** Why there is no room for it; undefined: there is. */
  refusal(item: Waiting): "full" | "tenant full" | undefined {
    const { tokens } = item;
    const { maxItems, maxTokens } = this.#bounds;
    // Any one item is taken, however large, by a queue with nothing in it.
    if (this.#size >= maxItems || (this.#size > 0 && this.#tokens + tokens > maxTokens)) return "full";
    const line = this.#lines.get(lineName(item));
    if (line === undefined) return undefined;
    const full = line.items.length >= maxItems * tenantShare || line.tokens + tokens > maxTokens * tenantShare;
    return full ? "tenant full" : undefined;
  }

  /**
   * Adds an item to its tenant's line, before those that came later: one that was taken out and could not run comes back
   * to its place, and no later one overtakes it however often that happens. For a new item the caller asks `refusal` first
   * whether there is room.
   */
  add(item: Item): void {
    const { items } = this.#lineOf(item);
    items.splice(items.findLastIndex(({ arrival }) => arrival < item.arrival) + 1, 0, item);
  }

  remove(item: Item): void {
    const line = this.#lines.get(lineName(item));
    const at = line?.items.indexOf(item) ?? -1;
    if (line !== undefined && at >= 0) this.#removeAt(line, at, item);
  }

  /** In no particular order between tenants. */
  items(): readonly Item[] {
    return [...this.#lines.values()].flatMap(({ items }) => items);
  }

  /**
   * Takes out the next item that can run.
   * @param fit says how an item can run; undefined: it cannot run now
   */
  take<Fit>(fit: (item: Item) => Fit | undefined): { readonly item: Item; readonly fit: Fit } | undefined {
    if (this.#lines.size === 0) return undefined;
    // Stable: with equal credit whoever was served longest ago comes first.
    const lines = [...this.#lines.values()].sort(
      (a, b) => Number(a.background) - Number(b.background) || roundsToCredit(a) - roundsToCredit(b),
    );
    for (const line of lines) {
      for (const [at, item] of line.items.slice(0, lookAhead).entries()) {
        const found = fit(item);
        if (found === undefined) continue;
        this.#giveRounds(roundsToCredit(line));
        this.#lines.delete(lineName(item));
        this.#lines.set(lineName(item), line);
        this.#removeAt(line, at, item);
        return { item, fit: found };
      }
    }
    return undefined;
  }

  /** Charges a tenant for tokens that were computed or generated for it. */
  charge(owner: LineOwner, tokens: number): void {
    const line = this.#lines.get(lineName(owner));
    if (line !== undefined) line.creditTokens -= tokens;
  }

  #giveRounds(rounds: number): void {
    if (rounds === 0) return;
    for (const line of this.#lines.values()) {
      line.creditTokens = Math.min(quantumTokens, line.creditTokens + rounds * quantumTokens);
    }
  }

  #lineOf(item: Item): Line<Item> {
    const line = this.#lines.getOrInsertComputed(lineName(item), () => {
      return { background: item.background === true, items: [], tokens: 0, creditTokens: quantumTokens };
    });
    line.tokens += item.tokens;
    this.#tokens += item.tokens;
    this.#size += 1;
    return line;
  }

  #removeAt(line: Line<Item>, at: number, item: Item): void {
    line.items.splice(at, 1);
    line.tokens -= item.tokens;
    this.#tokens -= item.tokens;
    this.#size -= 1;
    if (line.items.length === 0) this.#lines.delete(lineName(item));
  }
}

const roundsToCredit = ({ creditTokens }: { readonly creditTokens: number }): number =>
  creditTokens > 0 ? 0 : Math.floor(-creditTokens / quantumTokens) + 1;
