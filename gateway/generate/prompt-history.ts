/**
 * Prompts that later ones may be compared with, for callers who ask why the prompt cache was not used: what they were
 * made of by secret names, and how many tokens they left in the cache. In memory, bounded; another tenant's are unknown.
 */
import type { TenantId } from "../../db/ids.ts";
import { SecretNames } from "../base/secret-names.ts";
import { TenantLru } from "../base/tenant-lru.ts";

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

export class PromptHistory {
  readonly #prompts: TenantLru<Noted>;
  readonly #names = new SecretNames();

  /** @param maxTurns of all prompts together; the tenant that has most loses its least recently used */
  constructor(maxTurns: number) {
    this.#prompts = new TenantLru({ maxSize: maxTurns });
  }

  /** A prompt was answered under this id. */
  note<Part extends string>(tenantId: TenantId, id: string, facts: PromptFacts<Part>, usage: PromptUsage): void {
    const keptTokens = usage.cachedTokens + usage.cacheWriteTokens;
    const noted = this.#named(tenantId, facts);
    this.#prompts.set(tenantId, id, { ...noted, keptTokens }, noted.turns.length + 1);
  }

  /** What a prompt that found so much lost against the earlier one. */
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
