/** Sliding windows: layers in which a token sees only the last so many positions. */
import { z } from "zod";
import type { Family } from "./family.ts";
import type { Refuse } from "./model-error.ts";

/** A token at position p of a layer that slides sees position k where 0 <= p - k < tokens. */
export interface SlidingWindow {
  readonly tokens: number;
  /** [layerCount] */
  readonly layers: readonly boolean[];
}

const tokens = z.number().int().min(1).max(16_777_216);
const layer = z.number().int().min(0).max(65_536);

export const windowFields = {
  use_sliding_window: z.boolean().nullish(),
  sliding_window: tokens.nullish(),
  max_window_layers: layer.default(28),
  layer_types: z.array(z.string()).nullish(),
  sliding_window_pattern: layer.min(1).nullish(),
  _sliding_window_pattern: layer.min(1).nullish(),
};
interface RawWindow extends z.infer<z.ZodObject<typeof windowFields>> {
  readonly num_hidden_layers: number;
  readonly max_position_embeddings: number;
}

/**
 * @returns undefined where every layer sees all and none is told apart: a window as wide as the context hides no token,
 *   but where layers alternate, those that slide may differ by more than the window
 */
export function parseWindow(raw: RawWindow, { window }: Family, refuse: Refuse): SlidingWindow | undefined {
  const isOn = window.by !== "use_sliding_window" || raw.use_sliding_window === true;
  const width = raw.sliding_window === undefined ? window.defaultTokens : raw.sliding_window;
  const named = raw.layer_types?.includes("sliding_attention") ?? false;
  const alternates = typeof window.by === "number";
  if (alternates && width === null) refuse("sliding_window", null);
  if (!isOn || width === null) {
    if (named) refuse("layer_types", "sliding_attention");
    return undefined;
  }
  if (width >= raw.max_position_embeddings && !alternates) return undefined;
  const types = window.by === "sliding_window" ? undefined : raw.layer_types;
  const count = raw.num_hidden_layers;
  if (types && types.length !== count) refuse("layer_types", `${types.length} entries for ${count} layers`);
  const layers = Array.from({ length: count }, (_, i) => {
    if (types) return types[i] === "sliding_attention";
    if (window.by === "sliding_window" || window.by === "layer_types") return true;
    if (window.by === "use_sliding_window") return i >= raw.max_window_layers;
    return (i + 1) % (raw.sliding_window_pattern ?? raw._sliding_window_pattern ?? window.by) !== 0;
  });
  return layers.includes(true) ? { tokens: width, layers } : undefined;
}
