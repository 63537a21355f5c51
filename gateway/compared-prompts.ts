/**
 * Prompts that later ones may be compared with, for callers who ask why the prompt cache was not used: what they were
 * made of as hashes, and how many tokens they left in the cache. In memory, bounded; another tenant's are unknown.
 */
import { LRUCache } from "lru-cache";

/** What a prompt is made of: parts that stand before the conversation, in their order, and its turns. */
export interface PromptFacts<Part extends string> {
  readonly parts: Readonly<Record<Part, unknown>>;
  readonly turns: readonly unknown[];
}

interface Noted {
  readonly parts: Readonly<Record<string, string>>;
  readonly turns: readonly string[];
  readonly keptTokens: number;
}

export interface PromptUsage {
  readonly cachedTokens: number;
  readonly cacheWriteTokens: number;
}

export type Comparison<Part extends string> =
  | { readonly found: false }
  | {
      readonly found: true;
      /** Tokens that the earlier prompt left in the cache and that this one did not find; and all that it left. */
      readonly missedTokens: number;
      readonly reusableTokens: number;
      /** What differs first; undefined: the one goes on from the other, so what was missed has left the cache. */
      readonly changed: Part | "turns" | undefined;
    };

export class ComparedPrompts {
  readonly #prompts: LRUCache<string, Noted>;

  /** @param maxTurns of all prompts together; the least recently used are forgotten */
  constructor(maxTurns: number) {
    this.#prompts = new LRUCache({ maxSize: maxTurns, sizeCalculation: ({ turns }) => turns.length + 1 });
  }

  /** A prompt was answered under this id. */
  note<Part extends string>(tenantId: string, id: string, facts: PromptFacts<Part>, usage: PromptUsage): void {
    const keptTokens = usage.cachedTokens + usage.cacheWriteTokens;
    this.#prompts.set(`${tenantId} ${id}`, { ...hashed(facts), keptTokens });
  }

  /** What a prompt that found so much lost against the earlier one. */
  compare<Part extends string>(
    tenantId: string,
    earlierId: string,
    facts: PromptFacts<Part>,
    { cachedTokens }: PromptUsage,
  ): Comparison<Part> {
    const earlier = this.#prompts.get(`${tenantId} ${earlierId}`);
    if (earlier === undefined) return { found: false };
    const missedTokens = Math.max(0, earlier.keptTokens - cachedTokens);
    const { parts, turns } = hashed(facts);
    const names = Object.keys(facts.parts) as Part[];
    const goesOn = earlier.turns.every((turn, index) => turns[index] === turn);
    const changed = names.find((name) => parts[name] !== earlier.parts[name]) ?? (goesOn ? undefined : "turns");
    return { found: true, missedTokens, reusableTokens: earlier.keptTokens, changed };
  }
}

function hashed({ parts, turns }: PromptFacts<string>): Pick<Noted, "parts" | "turns"> {
  return {
    parts: Object.fromEntries(Object.entries(parts).map(([name, value]) => [name, hashOf(value)])),
    turns: turns.map(hashOf),
  };
}

const hashOf = (value: unknown): string => String(Bun.hash(JSON.stringify(value) ?? ""));
