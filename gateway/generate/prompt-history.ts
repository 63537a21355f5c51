/**
 * Remembers prompts for callers that ask why the prompt cache was not used: the secret names of a prompt's parts, and
 * how many of its tokens stayed in the cache. The history is in memory and bounded, and a tenant finds only its own
 * prompts.
 */
import type { TenantId } from "../../db/ids.ts";
import { SecretNames } from "../base/secret-names.ts";
import { TenantLru } from "../base/tenant-lru.ts";

/** What a prompt is made of: the parts before the conversation, in their order, and the conversation's turns. */
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
      /**
       * Tokens that the earlier prompt left in the cache and this prompt did not find, and all tokens that the earlier
       * one left.
       */
      readonly missedTokens: number;
      readonly reusableTokens: number;
      /**
       * The first part that differs. undefined: this prompt continues the earlier one, so the missed tokens have left
       * the cache.
       */
      readonly changed: Part | "turns" | undefined;
    };

export class PromptHistory {
  readonly #prompts: TenantLru<Noted>;
  readonly #names = new SecretNames();

  /**
   * @param maxTurns turns of all prompts together; beyond it, the tenant with the most loses its least recently used
   *   prompts
   */
  constructor(maxTurns: number) {
    this.#prompts = new TenantLru({ maxSize: maxTurns });
  }

  /** Notes a prompt that was answered, under the id of its answer. */
  note<Part extends string>(tenantId: TenantId, id: string, facts: PromptFacts<Part>, usage: PromptUsage): void {
    const keptTokens = usage.cachedTokens + usage.cacheWriteTokens;
    const noted = this.#named(tenantId, facts);
    this.#prompts.set(tenantId, id, { ...noted, keptTokens }, noted.turns.length + 1);
  }

  /** Compares a prompt with the earlier one: the cached tokens that it missed, and what changed. */
  compare<Part extends string>(
    tenantId: TenantId,
    earlierId: string,
    facts: PromptFacts<Part>,
    { cachedTokens }: PromptUsage,
  ): Comparison<Part> {
    const earlier = this.#prompts.get(tenantId, earlierId);
    if (earlier === undefined) return { found: false };
    const missedTokens = Math.max(0, earlier.keptTokens - cachedTokens);
    const { parts, turns } = this.#named(tenantId, facts);
    const names = Object.keys(facts.parts) as Part[];
    const goesOn = earlier.turns.every((turn, index) => turns[index] === turn);
    const changed = names.find((name) => parts[name] !== earlier.parts[name]) ?? (goesOn ? undefined : "turns");
    return { found: true, missedTokens, reusableTokens: earlier.keptTokens, changed };
  }

  #named(tenantId: TenantId, { parts, turns }: PromptFacts<string>): Pick<Noted, "parts" | "turns"> {
    const nameOf = (value: unknown): string => this.#names.of(tenantId, JSON.stringify(value) ?? "");
    return {
      parts: Object.fromEntries(Object.entries(parts).map(([name, value]) => [name, nameOf(value)])),
      turns: turns.map(nameOf),
    };
  }
}
