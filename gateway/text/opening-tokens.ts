/** The tokens that a tokenizer itself puts in front of a text: `<s>`, `<|begin_of_text|>`, or none. */
import { z } from "zod";
import type { ModelText } from "./model-text.ts";

const templateSchema = z.looseObject({
  type: z.literal("TemplateProcessing"),
  single: z.array(z.looseObject({ SpecialToken: z.looseObject({ id: z.string() }).optional() })),
  special_tokens: z.record(z.string(), z.looseObject({ ids: z.array(z.int().nonnegative()) })),
});
const sequenceSchema = z.looseObject({ type: z.literal("Sequence"), processors: z.array(z.unknown()) });

/** By the post-processor of tokenizer.json, unless `add_bos_token` of tokenizer_config.json says otherwise. */
export function openingTokenIds({ tokenizer, config }: Pick<ModelText, "tokenizer" | "config">): readonly number[] {
  if (config.add_bos_token === false) return [];
  const byTemplate = templateIds(tokenizer.post_processor);
  if (byTemplate.length > 0 || config.add_bos_token !== true) return byTemplate;
  const bos = tokenizer.added_tokens.find(({ content }) => content === config.bos_token);
  return bos === undefined ? [] : [bos.id];
}

function templateIds(processor: unknown): readonly number[] {
  const sequence = sequenceSchema.safeParse(processor);
  if (sequence.success) {
    return sequence.data.processors.map(templateIds).find((ids) => ids.length > 0) ?? [];
  }
  const template = templateSchema.safeParse(processor);
  if (!template.success) return [];
  const { single, special_tokens: specials } = template.data;
  const end = single.findIndex(({ SpecialToken: token }) => token === undefined);
  const opening = end < 0 ? [] : single.slice(0, end);
  return opening.flatMap(({ SpecialToken: token }) => specials[token?.id ?? ""]?.ids ?? []);
}
