/** `ranking_options` of a search, as the `openai` package has them. */
import { z } from "zod";
import type { HybridWeights } from "../../corpus/search/retrieve.ts";

/** "auto" and its dated name are the server's own ranking; "none" is it too, since nothing is ranked again. */
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
