/** Opens everything that turns text into tokens and back, from the model's folder. */
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { type Config, limits } from "../config.ts";
import { documentPieces, type LowerDocument, Lowerer } from "../lower/plan.ts";
import { QueryLowerer } from "../lower/query-lowerer.ts";
import { ChatTemplate } from "../text/chat-template.ts";
import { TokenBytes } from "../text/detokenizer.ts";
import { type ModelText, readModelText } from "../text/model-text.ts";
import { TextTokenizer } from "../text/tokenizer.ts";

export type TextSide = ReturnType<typeof openText>;

/**
 * Opens the tokenizer, the chat template and the token bytes of the model's folder. Lowerers are made once a worker has
 * reported the model's digest.
 * @throws Error naming the folder and what is wrong in it
 */
export function openText(config: Config) {
  const modelText = readModelText(config.modelDir);
  const tokenizer = new TextTokenizer(modelText, { cacheBytes: limits.encodedCacheBytes });
  const template = openTemplate(config.modelDir, modelText);
  let lowerer: Lowerer | undefined;
  let queryLowerer: QueryLowerer | undefined;
  // All workers serve one model (the registry sees to it), so there is one lowerer of each kind.
  const lowererFor = (card: ModelCard): Lowerer => {
    lowerer ??= new Lowerer({ template, tokenizer, card, cacheBytes: limits.spanCacheBytes });
    return lowerer;
  };
  const queryLowererFor = (card: ModelCard): QueryLowerer => {
    const cacheBytes = limits.encodedCacheBytes;
    queryLowerer ??= new QueryLowerer({ template, tokenizer, card, spans: lowererFor(card), cacheBytes });
    return queryLowerer;
  };
  /** Encodes what `lowerSpan` will need, before the model's digest is known. */
  const encodeAhead = (document: LowerDocument): Promise<void> =>
    tokenizer.warm(documentPieces(template, document), false, document.salt, { chars: 0 });
  const tokenBytes = new TokenBytes(modelText.tokenizer, template.signs);
  return { tokenizer, lowererFor, queryLowererFor, encodeAhead, tokenBytes };
}

function openTemplate(modelDir: string, modelText: ModelText): ChatTemplate {
  try {
    return new ChatTemplate(modelText);
  } catch (cause) {
    throw new Error(`${modelDir}: chat template: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
  }
}
