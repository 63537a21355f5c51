/**
 * Turns a rewritten span query into token plans, one for each generate:
 *
 *   prompt chain (its input), closed | output chain: the answer's opening, open; generated tokens follow it
 *
 * So all samples of a prompt share the whole prompt chain, and a closed output can stand in any other prompt unchanged.
 * Where the template writes nothing to open an answer (Mistral, Llama 2), the prompt's last token opens the output
 * chain instead.
 */
import { limits } from "../../worker/contract/limits.ts";
import type { TokenPlan } from "../../worker/contract/messages.ts";
import { ApiError } from "../base/errors.ts";
import { Pace } from "../base/pace.ts";
import type { Generate, Query } from "../query/ir.ts";
import { isOrdered } from "../query/nodes.ts";
import type { ChatTemplate } from "../text/chat-template.ts";
import type { ReasoningReading } from "../text/reasoning-reader.ts";
import { yieldAfter } from "../text/text-slices.ts";
import type { TextTokenizer } from "../text/tokenizer.ts";
import { determinatePlan, planOf, tooManySpans } from "./chain-plan.ts";
import { type ChainCard, outputRoot } from "./chains.ts";
import { KeyedTexts } from "./keyed-texts.ts";
import { type AnswerFrame, ChainMaker, stretchesOf } from "./outline-chains.ts";
import { documentPieces, type Lowerer } from "./plan.ts";
import { type ChainOutline, type ChainSource, OutlineBuilder } from "./prompt-outline.ts";
import type { LoweredGenerate, QueryContext } from "./query-context.ts";

export interface QueryLowererOptions {
  readonly template: ChatTemplate;
  readonly tokenizer: TextTokenizer;
  readonly card: ChainCard;
  /** Gives fragments their tokens and keys, so that the same fragments are found when they were prepared before. */
  readonly spans: Lowerer;
  /** Memory for keyed texts, with their tokens and keys. */
  readonly cacheBytes: number;
}

/** Cost of a text beyond its own characters, in characters, so that thousands of short texts yield to other work. */
const sourceChars = 256;

export class QueryLowerer {
  readonly #options: QueryLowererOptions;
  readonly #texts: KeyedTexts;

  constructor(options: QueryLowererOptions) {
    this.#options = options;
    this.#texts = new KeyedTexts(options);
  }

  /**
   * Does what `lower` does, in slices between which other work runs, so that no query holds up all others.
   * @param path of the generate in the query; errors and span ids begin with it
   * @throws ApiError as `lower` does; context_length_exceeded before encoding where the length in characters shows it
   */
  async lowerInSlices(generate: Generate, context: QueryContext, path = "$"): Promise<LoweredGenerate> {
    const outline = this.#outline(generate, context, path);
    const unyielded = { chars: 0 };
    await yieldAfter(unyielded, outline.parts.length * sourceChars);
    for (const source of sourcesOf(outline)) await this.#warmOwn(source, context, unyielded);
    const maker = this.#maker(context, path);
    const pace = new Pace();
    for (const source of partsFirst(outline)) {
      await pace.breathe();
      maker.chain(source);
    }
    await pace.breathe();
    return this.#lowered(generate, outline, maker, context, path);
  }

  /** @throws ApiError chat_template_error, context_length_exceeded, invalid_value, each with the path */
  lower(generate: Generate, context: QueryContext, path = "$"): LoweredGenerate {
    const outline = this.#outline(generate, context, path);
    return this.#lowered(generate, outline, this.#maker(context, path), context, path);
  }

  #reasoningOf(input: Query): ReasoningReading | undefined {
    const { template } = this.#options;
    const start = template.thinkingStart(hasSystem(input));
    if (template.reasoning === undefined || start === undefined || start === "off") return undefined;
    return { syntax: template.reasoning, isOpen: start === "open" };
  }

  #maker(context: QueryContext, path: string): ChainMaker {
    const { template, card, spans } = this.#options;
    return new ChainMaker({ template, texts: this.#texts, card, spans, frame: this.#frame(path) }, context);
  }

  #lowered(
    { input }: Generate,
    outline: ChainOutline,
    maker: ChainMaker,
    { salt }: QueryContext,
    path: string,
  ): LoweredGenerate {
    const { card } = this.#options;
    const prompt = maker.chain(outline);
    if (prompt.knownTokens > card.contextTokens) throw tooLong(card, prompt.knownTokens, path);
    const tokenIds = maker.openingOf(outline);
    const opening = { tokenIds, rootKey: outputRoot(card, salt, prompt) };
    const planned = planOf(prompt, opening, card.blockTokens);
    const promptTokens = prompt.end + tokenIds.length;
    return { ...planned, promptTokens, closeTokenIds: maker.closing, reasoning: this.#reasoningOf(input) };
  }

  /** The plan's closed runs that depend on no unknown output, for preparing them. undefined: there are none. */
  preparable(lowered: LoweredGenerate): TokenPlan | undefined {
    return determinatePlan(lowered);
  }

  #outline(generate: Generate, context: QueryContext, path: string): ChainOutline {
    const { template, tokenizer, card } = this.#options;
    const outline = new OutlineBuilder(template, context).prompt(generate, path);
    const least = tokenizer.leastTokens(shownChars(outline, new Map()));
    if (least > card.contextTokens) throw tooLong(card, least, path);
    if (leastSegments(outline, new Map()) > limits.maxSegmentsPerRun) throw tooManySpans(`${path}.g.input`);
    return outline;
  }

  async #warmOwn(source: ChainSource, { salt }: QueryContext, unyielded: { chars: number }): Promise<void> {
    const { template, tokenizer, spans } = this.#options;
    unyielded.chars += sourceChars;
    if (source.kind === "output") return;
    if (source.kind === "fragment") {
      const { fragment, parent } = source;
      if (parent === undefined) await spans.warmSpan(fragment, unyielded);
      else await tokenizer.warm(documentPieces(template, fragment), false, fragment.salt, unyielded);
      return;
    }
    for (const stretch of stretchesOf(source)) {
      if (stretch.kind === "nested") continue;
      for (const fragment of stretch.fragments) if (fragment.salt !== salt) await spans.warmSpan(fragment, unyielded);
      for (const item of stretch.items) if ("pieces" in item) await this.#texts.warm(item, salt, unyielded);
    }
  }

  #frame(path: string): AnswerFrame {
    const { template, tokenizer, card } = this.#options;
    const { messages } = template;
    const after = messages.inside("assistant")?.after;
    const opening = tokenizer.encode([{ kind: "template", text: messages.opening ?? "" }], false);
    const closing = tokenizer.encode([{ kind: "template", text: after ?? "" }], false);
    const isKnown = messages.opening !== undefined && after !== undefined;
    if (isKnown && closing.length <= card.blockTokens) return { opening, closing };
    throw new ApiError("chat_template_error", {
      message: "The model's chat template begins or ends an answer in a way that span queries cannot use.",
      param: path,
    });
  }
}

/** Whether a prompt has a message of the system's. */
const hasSystem = (input: Query): boolean =>
  input.kind === "message" ? input.role === "system" : isOrdered(input) && input.children.some(hasSystem);

/** A chain, all chains that stand in it, and all that it continues. */
function sourcesOf(source: ChainSource, found = new Set<ChainSource>()): ReadonlySet<ChainSource> {
  if (found.has(source)) return found;
  found.add(source);
  if (source.kind === "output") return sourcesOf(source.prompt, found);
  if (source.parent !== undefined) sourcesOf(source.parent, found);
  if (source.kind === "fragment") return found;
  for (const part of source.parts) if (part.kind !== "text") sourcesOf(part.source, found);
  return found;
}

/** A chain and all chains that it is made of; each comes after its own parts. */
function* partsFirst(source: ChainSource, found = new Set<ChainSource>()): Generator<ChainSource, void> {
  if (found.has(source)) return;
  found.add(source);
  if (source.kind === "output") yield* partsFirst(source.prompt, found);
  else if (source.parent !== undefined) yield* partsFirst(source.parent, found);
  if (source.kind === "prompt" || source.kind === "span") {
    for (const part of source.parts) if (part.kind === "nested") yield* partsFirst(part.source, found);
  }
  yield source;
}

/** Number of content characters in a prompt, those of nested chains included. */
function shownChars(source: ChainSource, known: Map<ChainSource, number>): number {
  if (source.kind === "output") return 0;
  if (source.kind === "fragment") return source.fragment.text.length;
  let chars = known.get(source);
  if (chars !== undefined) return chars;
  chars = 0;
  for (const part of source.parts) {
    if (part.kind !== "text") chars += shownChars(part.source, known);
    else for (const piece of part.pieces) if (piece.kind === "content") chars += piece.text.length;
  }
  known.set(source, chars);
  return chars;
}

/** Fewest segments that the answer sees: one for each chain with text in the prompt. Nothing is encoded for it. */
function leastSegments(source: ChainSource, known: Map<ChainSource, number>): number {
  if (source.kind !== "prompt" && source.kind !== "span") return 1;
  let segments = known.get(source);
  if (segments !== undefined) return segments;
  segments = 0;
  let hasText = false;
  for (const part of source.parts) {
    if (part.kind === "nested") segments += leastSegments(part.source, known);
    else hasText ||= part.kind === "inline" || part.pieces.some(({ text }) => text !== "");
  }
  segments += hasText ? 1 : 0;
  known.set(source, segments);
  return segments;
}

function tooLong(card: ChainCard, tokenCount: number, path: string): ApiError {
  return new ApiError("context_length_exceeded", {
    message:
      `This model's maximum context length is ${card.contextTokens} tokens. ` +
      `However, the query's prompt has at least ${tokenCount}.`,
    param: `${path}.g.input`,
  });
}
