/**
 * What waits for a worker: a line for each tenant, first come first served within it, and deficit round robin by
 * tokens between them. What an item costs is known only while it runs, so a tenant is served while it has credit and
 * pays afterwards; when nobody has credit that can be served, everybody gets another round's. Credit and debt end with
 * the line: who waits for nothing takes from nobody. Background work has lines of its own, which are served when nothing
 * of the others can run.
 */
import type { WorkOwner } from "./request/request.ts";
export interface FairQueueBounds {
  /** Items of all tenants, and their tokens. */
  readonly maxItems: number;
  readonly maxTokens: number;
}

/** Part of the queue that one tenant may fill. */
const tenantShare = 1 / 4;
/** Tokens of credit that a round brings. */
const quantumTokens = 512;
/** Items of a line that are looked at behind one that cannot run yet. */
const lookAhead = 16;

interface Line<Item> {
  readonly background: boolean;
  items: Item[];
  tokens: number;
  creditTokens: number;
}

/** Whose line it is. */
export interface LineOwner {
  readonly tenantId: WorkOwner;
  readonly background?: boolean | undefined;
}

export interface Waiting extends LineOwner {
  readonly tokens: number;
}

const lineName = ({ tenantId, background }: LineOwner): string => (background ? `${tenantId} background` : tenantId);

export class FairQueue<Item extends Waiting> {
  /** In the order in which they were served last. */
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

  /** Something of this owner's waits. */
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

  /** At the end of its tenant's line; whether there is room is `refusal`'s to say. */
  push(item: Item): void {
    this.#lineOf(item).items.push(item);
  }

  /** For what was taken and could not run: it is the next of its tenant again. */
  putBack(item: Item): void {
    this.#lineOf(item).items.unshift(item);
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
   * The next item that can run, taken out.
   * @param fit how it can; undefined: not now
   */
  take<Fit>(fit: (item: Item) => Fit | undefined): { readonly item: Item; readonly fit: Fit } | undefined {
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

  /** Tokens that were computed or generated for a tenant. */
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
    let line = this.#lines.get(lineName(item));
    if (line === undefined) {
      line = { background: item.background === true, items: [], tokens: 0, creditTokens: quantumTokens };
      this.#lines.set(lineName(item), line);
    }
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
