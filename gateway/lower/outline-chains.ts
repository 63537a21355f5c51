/** Turns outlines into chains: encodes their texts, inserts the outputs, and computes the runs' keys. */
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
import type { ChatTemplate } from "../text/chat-template.ts";
import { joined } from "../text/text-slices.ts";
import type { Piece } from "../text/tokenizer.ts";
import { type Chain, ChainBuilder, type ChainCard, type ChainCopy, chainOfSpan } from "./chains.ts";
import type { KeyedTexts, Text } from "./keyed-texts.ts";
import type { LowerDocument } from "./plan.ts";
import { documentPieces, type Lowerer } from "./plan.ts";
import type { ChainOutline, ChainSource, FragmentOutline, OutputOutline } from "./prompt-outline.ts";
import type { GeneratedOutput, QueryContext } from "./query-context.ts";

/** Tokens around every output: they open the answer (the template may write none) and end the message. */
export interface AnswerFrame {
  readonly opening: Int32Array;
  readonly closing: Int32Array;
}

/** The part of a chain between two nested chains. It becomes one run. */
export interface OwnStretch {
  readonly kind: "own";
  readonly items: readonly (Text | FragmentOutline | OutputOutline)[];
  /** Fragments whose text is part of this stretch. */
  readonly fragments: readonly LowerDocument[];
}

export type Stretch = OwnStretch | { readonly kind: "nested"; readonly source: ChainSource };

export interface ChainMakerOptions {
  readonly template: ChatTemplate;
  readonly texts: KeyedTexts;
  readonly card: ChainCard;
  readonly spans: Lowerer;
  readonly frame: AnswerFrame;
}

/** Makes the chains of one query. A part that stands in several places is made once. */
export class ChainMaker {
  readonly #options: ChainMakerOptions;
  readonly #context: QueryContext;
  readonly #chains = new Map<ChainSource, Chain>();
  /** The last token of each prompt, where the template writes nothing to open an answer. */
  readonly #heldBack = new Map<ChainOutline, Int32Array>();

  constructor(options: ChainMakerOptions, context: QueryContext) {
    this.#options = options;
    this.#context = context;
  }

  /** Tokens that end the assistant's message. */
  get closing(): Int32Array {
    return this.#options.frame.closing;
  }

  /** @throws ApiError chat_template_error where an answer cannot be opened, and invalid_value as encoding does */
  chain(source: ChainSource): Chain {
    return this.#chains.getOrInsertComputed(source, () => this.#make(source));
  }

  /**
   * The tokens that an answer begins with: the template's opening, or the prompt's last token, left out of its chain.
   */
  openingOf(prompt: ChainOutline): Int32Array {
    this.chain(prompt);
    return this.#heldBack.get(prompt) ?? this.#options.frame.opening;
  }

  #make(source: ChainSource): Chain {
    if (source.kind === "fragment") return this.#fragmentChain(source);
    if (source.kind === "output") return this.#outputChain(source);
    return this.#outlineChain(source);
  }

  #fragmentChain({ fragment, parent }: FragmentOutline): Chain {
    const { id: spanId, salt } = fragment;
    if (parent === undefined) return chainOfSpan(this.#options.spans.lowerSpan(fragment), spanId);
    const builder = this.#builder({ kind: "span", salt, spanId, parent: this.chain(parent) });
    // A fragment behind a parent has other keys than the fragment's own span, so the run names that span's keys too.
    const quotes = this.#options.spans.quotesOf([fragment], this.#context.salt);
    this.#addText(builder, textOf(documentPieces(this.#options.template, fragment)), salt, quotes);
    return builder.finish();
  }

  #outputChain(source: OutputOutline): Chain {
    const { spanId, prompt } = source;
    const builder = this.#builder({ kind: "main", salt: this.#context.salt, spanId, parent: this.chain(prompt) });
    const output = this.#output(source);
    const tokenIds = this.#answerTokens(output, this.openingOf(prompt));
    builder.addRun(tokenIds, { unknownTokens: output.known ? 0 : output.tokenIds.length });
    return builder.finish();
  }

  #outlineChain(outline: ChainOutline): Chain {
    const { recomputeRatio, spanId, parent } = outline;
    const hasCopies = recomputeRatio !== undefined && outline.parts.some(({ kind }) => kind === "inline");
    const exact = outline.kind === "prompt" ? "main" : "span";
    const kind = hasCopies ? (`blend ${recomputeRatio}` as const) : exact;
    const parentChain = parent === undefined ? undefined : this.chain(parent);
    const { salt } = this.#context;
    const builder = this.#builder({ kind, salt, spanId, parent: parentChain, recomputeRatio });
    const opensAnswer = outline.kind === "prompt" && this.#options.frame.opening.length === 0;
    const stretches = stretchesOf(outline);
    const last = stretches.at(-1);
    if (opensAnswer && last?.kind !== "own") throw nothingOpens(spanId);
    let prefixTokens = 0;
    for (const stretch of stretches) {
      const answered = opensAnswer && stretch === last ? outline : undefined;
      if (stretch.kind === "nested") builder.addNested(this.chain(stretch.source));
      else prefixTokens += this.#addOwn(builder, stretch, hasCopies, answered);
    }
    return builder.finish(prefixTokens);
  }

  /**
   * @param answered the prompt that ends with this stretch, if its last token has to open the answer
   * @returns how many of the added tokens belong to the prompt's prefix
   */
  #addOwn(builder: ChainBuilder, stretch: OwnStretch, copies: boolean, answered?: ChainOutline): number {
    const { items } = stretch;
    const quotes = this.#options.spans.quotesOf(stretch.fragments, this.#context.salt);
    const [first] = items;
    if (answered === undefined && first !== undefined && items.length === 1 && "pieces" in first) {
      return this.#addText(builder, first, this.#context.salt, quotes);
    }
    const tokens: Int32Array[] = [];
    const copied: ChainCopy[] = [];
    let at = 0;
    let prefixTokens = 0;
    let unknownTokens = 0;
    for (const item of items) {
      if ("pieces" in item) {
        const encoded = this.#options.texts.encode(item, this.#context.salt);
        prefixTokens += encoded.prefixTokens;
        tokens.push(encoded.tokenIds);
      } else {
        const output = item.kind === "output" ? this.#output(item) : undefined;
        if (output?.known === false) unknownTokens += output.tokenIds.length;
        const { opening } = this.#options.frame;
        tokens.push(output === undefined ? chainTokens(this.chain(item)) : this.#answerTokens(output, opening));
        // Without an opening, the output's own chain begins with its prompt's last token, which does not stand here.
        // Its KV cannot be copied, so it is computed in place.
        if (copies && (output === undefined || opening.length > 0)) copied.push({ chain: this.chain(item), at });
      }
      at += tokens.at(-1)?.length ?? 0;
    }
    const all = joined(tokens);
    const isCopiedLast = copied.some(({ chain, at }) => at + chain.end - chain.start === all.length);
    if (answered !== undefined && (all.length === 0 || isCopiedLast)) throw nothingOpens(answered.spanId);
    if (answered !== undefined) this.#heldBack.set(answered, all.slice(-1));
    const own = answered === undefined ? all : all.slice(0, -1);
    builder.addRun(own, { copies: copied, quotes, unknownTokens: Math.min(unknownTokens, own.length) });
    return Math.min(prefixTokens, own.length);
  }

  #addText(builder: ChainBuilder, text: Text, owner: CacheSalt, quotes: readonly BlockKey[]): number {
    const { tokenIds, blockKeys, prefixTokens } = this.#options.texts.keyed(builder.key, text, owner);
    builder.addRun(tokenIds, { blockKeys, quotes });
    return prefixTokens;
  }

  #builder(origin: ConstructorParameters<typeof ChainBuilder>[1]): ChainBuilder {
    return new ChainBuilder(this.#options.card, origin);
  }

  #output({ node, index, spanId }: OutputOutline): GeneratedOutput {
    const output = this.#context.outputs(node)[index];
    if (output === undefined) throw new Error(`${spanId}: there is no output`);
    return output;
  }

  /** Tokens of an output as a message of the assistant. */
  #answerTokens({ tokenIds }: GeneratedOutput, opening: Int32Array): Int32Array {
    return joined([opening, tokenIds, this.#options.frame.closing]);
  }
}

/** Puts the parts between two nested chains into one stretch each; neighbouring texts are encoded as one. */
export function stretchesOf(outline: ChainOutline): readonly Stretch[] {
  const isPrompt = outline.kind === "prompt";
  const stretches: Stretch[] = [];
  let items: OwnStretch["items"][number][] = [];
  let fragments: LowerDocument[] = [];
  let pieces: Piece[] = [];
  let isStart = true;
  const endText = (): void => {
    const prefix = isStart ? outline.prefix : "";
    if (pieces.length > 0 || prefix !== "") items.push({ prefix, pieces, opensPrompt: isStart && isPrompt });
    pieces = [];
    isStart = false;
  };
  const endStretch = (): void => {
    endText();
    if (items.length > 0) stretches.push({ kind: "own", items, fragments });
    items = [];
    fragments = [];
  };
  for (const part of outline.parts) {
    if (part.kind === "text") {
      pieces.push(...part.pieces);
      if (part.fragment !== undefined) fragments.push(part.fragment);
      continue;
    }
    if (part.kind === "inline") {
      endText();
      items.push(part.source);
      continue;
    }
    endStretch();
    stretches.push(part);
  }
  endStretch();
  return stretches;
}

function nothingOpens(path: string): ApiError {
  return new ApiError("chat_template_error", {
    message:
      "The model's chat template writes nothing that opens an answer, so a prompt must end in text of its own: " +
      "not in a plus, and not in what is blended.",
    param: `${path}.g.input`,
  });
}

const textOf = (pieces: readonly Piece[]): Text => ({ prefix: "", pieces, opensPrompt: false });

function chainTokens(chain: Chain): Int32Array {
  return joined(chain.parts.map((part) => (part.kind === "run" ? part.tokenIds : new Int32Array(0))));
}
