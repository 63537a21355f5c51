/**
 * Turns messages and documents into a TokenPlan. In the order of the prompt:
 *
 *   main run (system messages), closed | one span per document, each from position 0 | main run (conversation), open
 *
 * The open run sees everything before it: main runs at offset 0, each span at the place that it takes in this prompt.
 * Without documents there is one open run.
 */
import { LRUCache } from "lru-cache";
import { foldSpan, rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { PlanRun, SegmentRef, TokenPlan } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
import type { ChatTemplate, LayoutPart, PromptLayout } from "../text/chat-template.ts";
import { type LowerMessage, type ToolDefinition, toolChars } from "../text/messages.ts";
import { asJson } from "../text/stand-ins.ts";
import type { TemplateVariables } from "../text/template-probe.ts";
import { TokenBound } from "../text/text-slices.ts";
import { type Piece, rememberedBytes, type TextTokenizer } from "../text/tokenizer.ts";
import { keyBytes } from "./keyed-texts.ts";

export type { LowerMessage } from "../text/messages.ts";

/** A document or fragment. Its KV belongs to its text's owner, so `salt` is that of the tenant or of the corpus. */
export interface LowerDocument {
  readonly id: string;
  readonly text: string;
  readonly title?: string | undefined;
  readonly salt: CacheSalt;
}

export interface LowerInput {
  readonly messages: readonly LowerMessage[];
  /** Tools that the template shows in the prompt. Absent: none. */
  readonly tools?: readonly ToolDefinition[] | undefined;
  /** The last message is an answer that has begun: the prompt ends within it. */
  readonly continuesLast?: boolean | undefined;
  /** Wishes of the caller that the template reads. */
  readonly variables?: TemplateVariables | undefined;
  readonly documents: readonly LowerDocument[];
  /** Salt of the main chain. */
  readonly salt: CacheSalt;
  /** "span": each document is a span of its own. "full": documents are in the main chain and see all before them. */
  readonly attention: "span" | "full";
}

export interface LoweredSpan {
  readonly tokenIds: Int32Array;
  readonly blockKeys: readonly BlockKey[];
  readonly rootKey: BlockKey;
}

export interface LowererOptions {
  readonly template: ChatTemplate;
  readonly tokenizer: TextTokenizer;
  readonly card: Pick<ModelCard, "digest" | "blockTokens" | "contextTokens">;
  /** Memory for lowered documents, with their tokens and keys. */
  readonly cacheBytes: number;
}

export class Lowerer {
  readonly #options: LowererOptions;
  readonly #spans: LRUCache<string, LoweredSpan>;
  /** Layouts of the prompts that are being lowered. */
  readonly #layouts = new WeakMap<LowerInput, PromptLayout>();

  constructor(options: LowererOptions) {
    this.#options = options;
    this.#spans = new LRUCache({
      maxSize: options.cacheBytes,
      sizeCalculation: (span, key) => rememberedBytes(key, span.tokenIds) + keyBytes * span.blockKeys.length,
    });
  }

  /** How the template writes calls (undefined: it knows no tools) and thinking, which messages it takes, what it reads. */
  get templateFacts(): Pick<
    ChatTemplate,
    "calls" | "takesSystem" | "reads" | "reasoning" | "showsThinking" | "thinkingStart"
  > {
    return this.#options.template;
  }

  /** Token ids of a text as the template writes it: names of control tokens are these tokens. */
  templateTokenIds(text: string): Int32Array {
    return this.#options.tokenizer.encode([{ kind: "template", text }], false);
  }

  /**
   * Encodes long texts ahead of `lower`, in slices between which other work runs: no request holds up all others.
   * @param answered true: a prompt beyond the model's context is refused as soon as that is known. false: the whole
   *   prompt is encoded, so that its tokens can be counted.
   * @throws ApiError context_length_exceeded (before encoding where the length in characters shows it), invalid_value
   */
  async warm(input: LowerInput, answered = true): Promise<void> {
    const { template, tokenizer } = this.#options;
    this.#refuseHopeless(input);
    const unyielded = { chars: 0 };
    const bound = answered ? this.#tokenBound("messages and documents have") : undefined;
    for (const document of input.documents) {
      const isSpan = input.attention === "span";
      // The plan names another owner's span even where the text is part of the main chain, so it needs its tokens.
      if (isSpan || document.salt !== input.salt) await this.warmSpan(document, unyielded, isSpan ? bound : undefined);
      if (!isSpan) await tokenizer.warm(documentPieces(template, document), false, input.salt, unyielded, bound);
    }
    const { head, tail } = this.#layout(input);
    await tokenizer.warm(this.#pieces([...head, ...tail], input), true, input.salt, unyielded, bound);
  }

  /** @throws ApiError chat_template_error, context_length_exceeded (when the prompt's length in characters shows it) */
  lower(input: LowerInput): TokenPlan {
    const { template, tokenizer } = this.#options;
    this.#refuseHopeless(input);
    const { head, tail } = this.#layout(input);
    if (input.documents.length === 0 || input.attention === "full") {
      const documents = input.documents.flatMap((document) => documentPieces(template, document));
      const pieces = [...this.#pieces(head, input), ...documents, ...this.#pieces(tail, input)];
      const tokenIds = tokenizer.encode(pieces, true, input.salt);
      const run = this.#openRun(tokenIds, this.#mainRoot(input.salt), 0, []);
      const quotes = this.quotesOf(input.documents, input.salt);
      return { runs: [quotes.length === 0 ? run : { ...run, quotes }] };
    }
    const headIds = tokenizer.encode(this.#pieces(head, input), true, input.salt);
    const tailIds = tokenizer.encode(this.#pieces(tail, input), false, input.salt);
    return this.#assemble(input, headIds, tailIds);
  }

  /**
   * Lowers a prompt without a template: a text behind the tokenizer's own opening, or token ids unchanged.
   * @throws ApiError context_length_exceeded (before encoding where the length in characters shows it), invalid_value
   */
  async lowerText(prompt: string | readonly number[], salt: CacheSalt): Promise<TokenPlan> {
    const bound = this.#tokenBound("text has", "prompt");
    const tokenIds = typeof prompt === "string" ? await this.#encodeText(prompt, salt, bound) : Int32Array.from(prompt);
    return { runs: [this.#openRun(tokenIds, this.#mainRoot(salt), 0, [])] };
  }

  /** Token ids of a text that is no prompt. @throws ApiError as `lowerText` does */
  async encodeText(text: string, salt: CacheSalt, withOpening = true): Promise<Int32Array> {
    return await this.#encodeText(text, salt, undefined, withOpening);
  }

  async #encodeText(text: string, salt: CacheSalt, bound: TokenBound | undefined, withOpening = true) {
    const { tokenizer } = this.#options;
    this.#refuseHopelessChars(text.length, "text has", "prompt");
    const pieces: readonly Piece[] = [{ kind: "content", text }];
    await tokenizer.warm(pieces, true, salt, { chars: 0 }, bound);
    const tokenIds = tokenizer.encode(pieces, true, salt);
    return withOpening ? Int32Array.from([...tokenizer.openingTokenIds, ...tokenIds]) : tokenIds;
  }

  /** The span of one document. It has the same tokens and keys in every prompt and when it is prepared ahead. */
  lowerSpan(document: LowerDocument): LoweredSpan {
    const { template, tokenizer, card } = this.#options;
    const cacheKey = spanCacheKey(document);
    const cached = this.#spans.get(cacheKey);
    if (cached !== undefined) return cached;
    const tokenIds = tokenizer.encode(documentPieces(template, document), false, document.salt);
    const root = this.spanRoot(document.salt);
    const span = { tokenIds, rootKey: root, blockKeys: runBlockKeys(root, tokenIds, card.blockTokens, true) };
    this.#spans.set(cacheKey, span);
    return span;
  }

  /** For each document of another owner: the last key of its span, and the key from which its first is computed. */
  quotesOf(documents: readonly LowerDocument[], owner: CacheSalt): readonly BlockKey[] {
    const theirs = documents.filter(({ salt }) => salt !== owner);
    const spans = theirs.map((document) => this.lowerSpan(document));
    return [...new Set(spans.flatMap((span) => [spanKeyOf(span), span.rootKey]))];
  }

  /** The key from which the first block key of every document's span with this salt is computed. */
  spanRoot(salt: CacheSalt): BlockKey {
    return rootKey(this.#options.card.digest, salt, "span");
  }

  /** Encodes a document's text ahead of `lowerSpan`, in slices between which other work runs (TextTokenizer.warm). */
  async warmSpan(document: LowerDocument, unyielded: { chars: number }, bound?: TokenBound): Promise<void> {
    const known = this.#spans.peek(spanCacheKey(document));
    if (known !== undefined) return bound?.add(known.tokenIds.length);
    const { template, tokenizer } = this.#options;
    await tokenizer.warm(documentPieces(template, document), false, document.salt, unyielded, bound);
  }

  /** A plan that only computes and keeps the spans of these documents. */
  preparePlan(documents: readonly LowerDocument[]): TokenPlan {
    return { runs: documents.map((document) => spanRun(document, this.lowerSpan(document))) };
  }

  #assemble(input: LowerInput, headIds: Int32Array, tailIds: Int32Array): TokenPlan {
    const { blockTokens } = this.#options.card;
    const runs: PlanRun[] = [];
    const sees: SegmentRef[] = [];
    let mainKey = this.#mainRoot(input.salt);
    let position = 0;
    if (headIds.length > 0) {
      const blockKeys = runBlockKeys(mainKey, headIds, blockTokens, true);
      sees.push({ run: 0, firstToken: 0, tokenCount: headIds.length, offset: 0 });
      runs.push({ kind: "main", tokenIds: headIds, position: 0, sees: [], blockKeys, rootKey: mainKey });
      mainKey = blockKeys.at(-1) ?? mainKey;
      position = headIds.length;
    }
    for (const document of input.documents) {
      const span = this.lowerSpan(document);
      const tokenCount = span.tokenIds.length;
      sees.push({ run: runs.length, firstToken: 0, tokenCount, offset: position });
      runs.push(spanRun(document, span));
      mainKey = foldSpan(mainKey, spanKeyOf(span));
      position += tokenCount;
    }
    runs.push(this.#openRun(tailIds, mainKey, position, sees));
    return { runs };
  }

  #openRun(tokenIds: Int32Array, root: BlockKey, position: number, sees: readonly SegmentRef[]): PlanRun {
    const blockKeys = runBlockKeys(root, tokenIds, this.#options.card.blockTokens, false);
    return { kind: "main", tokenIds, position, sees, blockKeys, rootKey: root };
  }

  #mainRoot(salt: CacheSalt): BlockKey {
    return rootKey(this.#options.card.digest, salt, "main");
  }

  #pieces(parts: readonly LayoutPart[], input: LowerInput): readonly Piece[] {
    return parts.map((part): Piece => {
      if ("text" in part) return { kind: "template", text: part.text };
      if ("literal" in part) return { kind: "content", text: asJson(part.literal, part.jsonDepth) };
      const message = input.messages[part.contentOf];
      if (message === undefined) throw new Error(`layout names message ${part.contentOf}`);
      const { role, content } = message;
      const isJson = part.jsonDepth > 0;
      return {
        kind: "content",
        text: isJson ? asJson(content, part.jsonDepth) : this.#options.template.contentFor(role, content),
      };
    });
  }

  #layout(input: LowerInput): PromptLayout {
    const { template } = this.#options;
    return this.#layouts.getOrInsertComputed(input, () =>
      template.layout(input.messages, input.tools, input.continuesLast, input.variables),
    );
  }

  /** Refuses a prompt that is surely too long, before any of it is encoded. */
  #refuseHopeless(input: LowerInput): void {
    let chars = toolChars(input.messages, input.tools ?? []);
    for (const message of input.messages) chars += message.content.length + (message.thinking?.length ?? 0);
    for (const document of input.documents) chars += document.text.length + (document.title?.length ?? 0);
    this.#refuseHopelessChars(chars, "messages and documents have");
  }

  #refuseHopelessChars(chars: number, what: string, param = "messages"): void {
    const { tokenizer, card } = this.#options;
    const least = tokenizer.leastTokens(chars);
    if (least <= card.contextTokens) return;
    throw this.#tooLong(`${what} ${chars} characters, which are at least ${least} tokens`, param);
  }

  #tokenBound(what: string, param = "messages"): TokenBound {
    const { contextTokens } = this.#options.card;
    return new TokenBound(contextTokens, (tokens) => this.#tooLong(`${what} ${tokens} tokens and more`, param));
  }

  #tooLong(what: string, param: string): ApiError {
    const message = `This model's maximum context length is ${this.#options.card.contextTokens} tokens. However, the ${what}.`;
    return new ApiError("context_length_exceeded", { message, param });
  }
}

/** A document's text as every prompt writes it. */
export function documentPieces(template: ChatTemplate, document: Omit<LowerDocument, "salt">): readonly Piece[] {
  const { document: layout } = template;
  const title = document.title === undefined || document.title === "" ? "" : `Title: ${document.title}\n`;
  return [
    { kind: "template", text: layout.before },
    { kind: "content", text: template.contentFor(layout.role, title + document.text) },
    { kind: "template", text: layout.after },
  ];
}

function spanCacheKey(document: LowerDocument): string {
  // Salts hold no space and titles no line break, so two different documents never make the same string.
  return `${document.salt} ${document.title ?? ""}\n${document.text}`;
}

const spanKeyOf = ({ blockKeys, rootKey: root }: LoweredSpan): BlockKey => blockKeys.at(-1) ?? root;

function spanRun(document: LowerDocument, span: LoweredSpan): PlanRun {
  const { tokenIds, blockKeys, rootKey: root } = span;
  return { kind: "span", tokenIds, position: 0, sees: [], blockKeys, rootKey: root, spanId: document.id };
}
