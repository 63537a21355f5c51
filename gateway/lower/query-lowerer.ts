/**
 * A rewritten span query to token plans, one a generate:
 *
 *   prompt chain (its input), closed | output chain: the answer's opening, open; generated tokens go on from it
 *
 * So samples of one prompt share all of it, and an output, once closed, can stand anywhere as it is.
 */
import { LRUCache } from "lru-cache";
import { runBlockKeys } from "../../worker/contract/block-key.ts";
import type { TokenPlan } from "../../worker/contract/messages.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { ApiError } from "../errors.ts";
import type { Generate } from "../query/ir.ts";
import { determinatePlan, planOf } from "./chain-plan.ts";
import { type ChainCard, outputRoot } from "./chains.ts";
import type { ChatTemplate } from "./chat-template.ts";
import { ChainMaker, type MessageFrame } from "./outline-chains.ts";
import type { Lowerer } from "./plan.ts";
import { type ChainOutline, type ChainSource, OutlineBuilder } from "./prompt-outline.ts";
import type { LoweredGenerate, QueryContext } from "./query-context.ts";
import { KeyedTexts } from "./keyed-texts.ts";
import type { TextTokenizer } from "./tokenizer.ts";

export interface QueryLowererOptions {
  readonly template: ChatTemplate;
  readonly tokenizer: TextTokenizer;
  readonly card: ChainCard;
  /** Fragments get their tokens and keys from it, so that prepared ones are found. */
  readonly spans: Lowerer;
  /** Characters of encoded and keyed texts to remember. */
  readonly cacheChars: number;
}

export class QueryLowerer {
  readonly #options: QueryLowererOptions;
  readonly #texts: KeyedTexts;

  constructor(options: QueryLowererOptions) {
    this.#options = options;
    this.#texts = new KeyedTexts(options);
  }

  /**
   * Encodes long texts of a prompt ahead of `lower`, in turns with other work, so that no query holds up all others.
   * @param path of the generate in the query; errors and span ids begin with it
   * @throws ApiError context_length_exceeded (when that is plain before encoding), chat_template_error, invalid_value
   */
  async warm(generate: Generate, context: QueryContext, path = "$"): Promise<void> {
    const outline = this.#outline(generate, context, path);
    const turns = { chars: 0 };
    for (const source of sourcesOf(outline)) await this.#texts.warm(source, context.salt, turns);
  }

  /** @throws ApiError chat_template_error, context_length_exceeded, invalid_value, each with the path */
  lower(generate: Generate, context: QueryContext, path = "$"): LoweredGenerate {
    const outline = this.#outline(generate, context, path);
  }

  /** The closed runs of a plan that depend on no unknown output, to be prepared; undefined: there are none. */
  preparable(lowered: LoweredGenerate): TokenPlan | undefined {
    return determinatePlan(lowered);
  }
}
