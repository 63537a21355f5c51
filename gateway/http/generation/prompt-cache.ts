/**
 * What callers ask of the prompt cache, in the fields of OpenAI's package. Every prompt is cached here as far as there is room;
 * a time that is asked for keeps it from being evicted before what nobody asks to keep, within the tenant's share. It
 * begins anew with every use, and holds for the whole prompt, which is at least what a breakpoint ends.
 */
import { z } from "zod";
import { type RetentionTime, retentionOf } from "../../../worker/contract/owners.ts";
import { optional, shortString } from "../transport/fields.ts";

const ttl = z.enum(["30m", "12h"], 'must be "30m" or "12h"');

/** A breakpoint at a part of a message says that the prompt up to there will be asked for again. */
export const cacheBreakpoint = optional(z.strictObject({ mode: z.literal("explicit"), ttl: ttl.optional() }));
export type CacheBreakpoint = NonNullable<z.output<typeof cacheBreakpoint>>;

export const promptCacheOptions = {
  mode: z.enum(["implicit", "explicit"]).optional(),
  ttl: ttl.optional(),
};

export const promptCacheFields = {
  prompt_cache_key: optional(shortString),
  prompt_cache_options: optional(z.strictObject(promptCacheOptions)),
  prompt_cache_retention: optional(z.enum(["in_memory", "24h"])),
};

export interface CacheWishes {
  readonly prompt_cache_options?:
    | { readonly mode?: "implicit" | "explicit" | undefined; readonly ttl?: z.output<typeof ttl> | undefined }
    | undefined;
  readonly prompt_cache_retention?: "in_memory" | "24h" | undefined;
}

export interface CacheUse {
  /** false: with explicit breakpoints alone, and none in the prompt, the cache is not used. */
  readonly caches: boolean;
  /** The longest time that is asked for. */
  readonly retention: RetentionTime | undefined;
}

export function cacheUse(wishes: CacheWishes, breakpoints: readonly CacheBreakpoint[]): CacheUse {
  const { prompt_cache_options: options = {}, prompt_cache_retention: policy } = wishes;
  if (options.mode === "explicit" && breakpoints.length === 0) return { caches: false, retention: undefined };
  const shared = options.ttl ?? "30m";
  const asked: RetentionTime[] = breakpoints.map((breakpoint) => breakpoint.ttl ?? shared);
  if (options.mode === "implicit" || options.ttl !== undefined) asked.push(shared);
  if (policy === "24h") asked.push(policy);
  return { caches: true, retention: asked.toSorted((a, b) => retentionOf[b] - retentionOf[a])[0] };
}
