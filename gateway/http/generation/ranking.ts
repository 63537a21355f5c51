/** `ranking_options` of a search, as the `openai` package has them. */
import { z } from "zod";
import type { HybridWeights } from "../../corpus/search/retrieve.ts";

/** "auto" and its dated name are what the server does by default; with "none" no cross-encoder ranks what was found. */
const rankerSchema = z.enum(["none", "auto", "default-2024-11-15"], {
  error: "only 'none', 'auto' and 'default-2024-11-15' are supported",
});

const weight = z.number().min(0).max(1_000);

const hybridSearchSchema = z
  .strictObject({ embedding_weight: weight, text_weight: weight })
  .refine((weights) => weights.embedding_weight + weights.text_weight > 0, { message: "must have a weight above 0" })
  .transform(
    ({ embedding_weight, text_weight }): HybridWeights => ({ embedding: embedding_weight, text: text_weight }),
  );

export const rankingOptions = z.strictObject({
  ranker: rankerSchema.optional(),
  score_threshold: z.number().min(0).max(1).optional(),
  hybrid_search: hybridSearchSchema.optional(),
});

/** Whether a cross-encoder scores what was found, if the server has one. */
export const ranksAgain = (options: z.output<typeof rankingOptions> | undefined): boolean => options?.ranker !== "none";
