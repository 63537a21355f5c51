/** The keys of an engine's resident blocks, each once, in no order. */
import type { BlockKey } from "../../worker/contract/units.ts";
import type { Engine } from "../../worker/engine/loop.ts";

export function residentKeys({ cache }: Engine): BlockKey[] {
  return [...new Set(Array.from(cache.resident(), ([key]) => key))];
}
