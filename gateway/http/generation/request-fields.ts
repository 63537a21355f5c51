/** Fields that the APIs that answer have in common: documents, searches of vector stores, and facts for the caller. */
import { z } from "zod";
import { limits as contractLimits } from "../../../worker/contract/limits.ts";
import { servedModes } from "../../../worker/contract/sparse.ts";
import { limits } from "../../config.ts";
import type { ChatRequest } from "../../generate/requests.ts";
import { optional, shortString } from "../transport/fields.ts";
import { rankingOptions, ranksAgain } from "./ranking.ts";

/** A title has no line breaks, since it stands in a line of its own in the prompt. */
export const documentTitle = z
  .string()
  .max(limits.titleChars)
  .transform((title) => title.replace(/\s+/g, " ").trim());

const document = z.strictObject({
  id: z.string().min(1).max(limits.documentIdChars).optional(),
  title: optional(documentTitle),
  text: z.string().min(1),
});

/** Reports tell of documents by id, so no two have the same; one without is known by its place. */
const documents = z
  .array(document)
  .max(limits.documents)
  .transform((entries) => entries.map(({ id, title, text }, index) => ({ id: id ?? `document-${index}`, title, text })))
  .superRefine((entries, context) => {
    const ids = entries.map(({ id }) => id);
    const twice = ids.findIndex((id, index) => ids.indexOf(id) !== index);
    if (twice < 0) return;
    context.addIssue({ code: "custom", path: [twice, "id"], message: "another document has this id", input: entries });
  });

/** @param filters the corpus side's schema of `filters` */
export const fileSearchFields = (filters: z.ZodType) => ({
  vector_store_ids: z.array(z.string().min(1).max(limits.shortStringChars)).min(1).max(limits.vectorStoresPerSearch),
  max_num_results: z.int().min(1).max(limits.retrievedFragments).default(10),
  filters: filters.optional(),
  ranking_options: rankingOptions.optional(),
});

export const fileSearchSchema = (filters: z.ZodType) =>
  z.strictObject(fileSearchFields(filters)).transform(fileSearchOf);

export function fileSearchOf(
  body: z.output<z.ZodObject<ReturnType<typeof fileSearchFields>>>,
): NonNullable<ChatRequest["fileSearch"]> {
  return {
    vectorStoreIds: body.vector_store_ids,
    maxResults: body.max_num_results,
    filters: body.filters,
    scoreThreshold: body.ranking_options?.score_threshold,
    weights: body.ranking_options?.hybrid_search,
    rerank: ranksAgain(body.ranking_options),
  };
}

/** Tokens that rows of an answer choose to read; fewer are less than its tail. */
const sparse = z.union([
  z.boolean(),
  z.strictObject({
    tokens: z.int().min(limits.leastSparseTokens).max(contractLimits.maxRequestTokens).optional(),
    mode: z.enum(servedModes).optional(),
  }),
]);

/** Fields of `spangate` that every API that answers has. */
export const spangateFields = {
  reuse: z.boolean().optional(),
  prompt_cache_diagnostics: z.boolean().optional(),
  sparse: sparse.optional(),
};

/** Each API picks the fields that it has; they have the same names everywhere. */
export const requestFields = {
  model: z.string().min(1).max(limits.shortStringChars),
  documents: optional(documents),
  n: optional(z.int().min(1).max(contractLimits.maxChoices)),
  stream: optional(z.boolean()),
  stream_options: optional(
    z.strictObject({ include_usage: z.boolean().optional(), include_obfuscation: z.literal(false).optional() }),
  ),
  cache_salt: optional(z.string().min(1).max(limits.shortStringChars)),
  spangate: optional(z.strictObject({ ...spangateFields, attention: z.enum(["span", "full"]).optional() })),
  user: optional(shortString),
  safety_identifier: optional(shortString),
  metadata: optional(
    z
      .record(z.string().max(64), shortString)
      .refine((entries) => Object.keys(entries).length <= limits.metadataEntries, "too many entries"),
  ),
};
