/**
 * Turns the input of a generate into an outline: which texts, fragments and outputs stand in which chain, and in what
 * order. No text is encoded yet.
 */
import { ApiError } from "../base/errors.ts";
import { childrenOf, defaultRecomputeRatio, type Generate, type Plus, type Query, type Repeat } from "../query/ir.ts";
import type { ChatTemplate } from "../text/chat-template.ts";
import type { MessageLayouts } from "../text/message-layouts.ts";
import type { MessageLayout } from "../text/template-probe.ts";
import type { Piece } from "../text/tokenizer.ts";
import type { LowerDocument } from "./plan.ts";
import { documentPieces } from "./plan.ts";
import type { QueryContext } from "./query-context.ts";

export interface FragmentOutline {
  readonly kind: "fragment";
  readonly fragment: LowerDocument;
  readonly parent: ChainSource | undefined;
}

/** One output of a generate or repeat: tokens that open the answer, generated tokens, and the end of the message. */
export interface OutputOutline {
  readonly kind: "output";
  readonly node: Generate | Repeat;
  readonly index: number;
  readonly prompt: ChainOutline;
  readonly spanId: string;
}

export interface ChainOutline {
  readonly kind: "prompt" | "span";
  /** What the template writes before the first message. It is hidden where the prompt stands in another prompt. */
  readonly prefix: string;
  readonly parts: readonly OutlinePart[];
  readonly parent: ChainSource | undefined;
  /** Share of the copied tokens that is computed again. undefined: nothing is copied, all is computed in place. */
  readonly recomputeRatio: number | undefined;
  readonly spanId: string;
}

/** Anything that a chain can be made from. */
export type ChainSource = FragmentOutline | OutputOutline | ChainOutline;

export type OutlinePart =
  | { readonly kind: "text"; readonly pieces: readonly Piece[]; readonly fragment?: LowerDocument }
  | { readonly kind: "inline"; readonly source: FragmentOutline | OutputOutline }
  | { readonly kind: "nested"; readonly source: ChainSource };

type Generated = Generate | Repeat;
type Leaf = readonly [path: string, query: Query];

export class OutlineBuilder {
  readonly #template: ChatTemplate;
  readonly #layouts: MessageLayouts;
  readonly #context: QueryContext;
  readonly #prompts = new Map<Generate, ChainOutline>();

  constructor(template: ChatTemplate, context: QueryContext) {
    this.#template = template;
    this.#layouts = template.messages;
    this.#context = context;
  }

  /** @throws ApiError chat_template_error, invalid_value (an empty prompt), each with the path */
  prompt(generate: Generate, path: string): ChainOutline {
    const known = this.#prompts.get(generate);
    if (known !== undefined) return known;
    const inputPath = `${path}.g.input`;
    const role = this.#firstRole(generate.input);
    if (role === undefined) {
      throw new ApiError("invalid_value", { message: "The prompt of a generate is empty.", param: inputPath });
    }
    const start = this.#layouts.start(role);
    if (start === undefined) throw refusal(role, inputPath);
    const { reuse, recomputeRatio = defaultRecomputeRatio } = generate.options;
    const ratio = reuse === "blend" ? recomputeRatio : undefined;
    const draft = new Draft(ratio, start.first);
    this.#walk(generate.input, inputPath, draft);
    const outline: ChainOutline = {
      kind: "prompt",
      prefix: start.prefix,
      parts: draft.parts,
      parent: undefined,
      recomputeRatio: ratio,
      spanId: path,
    };
    this.#prompts.set(generate, outline);
    return outline;
  }

  #walk(query: Query, path: string, draft: Draft): void {
    switch (query.kind) {
      case "seq":
      case "cross":
      case "par":
        for (const [step, child] of childrenOf(query)) this.#walk(child, path + step, draft);
        return;
      case "message":
        return draft.addText(this.#messagePieces(query.role, query.text, path, draft.first));
      case "fragment": {
        const fragment = this.#fragment(query, path);
        if (draft.ratio === undefined) return draft.addText(documentPieces(this.#template, fragment), fragment);
        return draft.add({ kind: "inline", source: { kind: "fragment", fragment, parent: undefined } });
      }
      case "generate":
      case "repeat": {
        const [inputPath, generate] = generateOf(query, path);
        if (generate.options.expose === "both") this.#walk(generate.input, `${inputPath}.g.input`, draft);
        for (const source of this.#outputs(query, path)) draft.add({ kind: "inline", source });
        return;
      }
      case "plus":
        return this.#addPlus(query, path, undefined, draft);
      case "monad":
        return;
      default:
        throw new Error(`${path}: a ${query.kind} is rewritten before lowering`);
    }
  }

  /** Adds each child of a plus as a chain of its own. With a preamble, the preamble's chain is their parent. */
  #addPlus(plus: Plus, path: string, outer: ChainSource | undefined, draft: Draft): void {
    let parent = outer;
    for (const [step, child] of childrenOf(plus)) {
      const isPreamble = child === plus.preamble && step === ".plus.preamble";
      const sources = this.#spans(child, path + step, parent, draft, isPreamble);
      for (const source of sources) draft.add({ kind: "nested", source });
      if (isPreamble) parent = sources[0] ?? parent;
    }
  }

  /** The chains that a child of a plus becomes. A plus inside a plus adds its chains to the draft itself. */
  #spans(
    child: Query,
    path: string,
    parent: ChainSource | undefined,
    draft: Draft,
    isPreamble: boolean,
  ): readonly ChainSource[] {
    const leaves = leavesOf(child, path);
    const [first] = leaves;
    if (first === undefined) return [];
    const [firstPath, only] = first;
    if (leaves.length === 1 && only.kind === "fragment") {
      return [{ kind: "fragment", fragment: this.#fragment(only, firstPath), parent }];
    }
    if (leaves.length === 1 && only.kind === "plus" && !isPreamble) {
      this.#addPlus(only, firstPath, parent, draft);
      return [];
    }
    // These outputs were computed without a preamble, so their chains cannot stand behind one.
    const behind = isPreamble || parent !== undefined ? undefined : this.#outputsBehindPrompt(leaves);
    if (behind !== undefined) return behind;
    const own = new Draft(draft.ratio, undefined);
    for (const [leafPath, leaf] of leaves) this.#walk(leaf, leafPath, own);
    const spanId = path;
    return [{ kind: "span", prefix: "", parts: own.parts, parent, recomputeRatio: draft.ratio, spanId }];
  }

  /**
   * The chains of outputs, behind the chain of the prompt that they answer where it is shown. This is possible for g(x)
   * alone, and for x followed by generates of x, which the rewriter makes. undefined: the leaves have neither form.
   */
  #outputsBehindPrompt(leaves: readonly Leaf[]): readonly ChainSource[] | undefined {
    const [lastPath, last] = leaves.at(-1) ?? [];
    if (lastPath === undefined || last === undefined || !isGenerated(last)) return undefined;
    const [promptPath, generate] = generateOf(last, lastPath);
    const shown = leavesOf(generate.input, "");
    const isAlone = leaves.length === 1;
    const answers = isAlone ? leaves : leaves.slice(shown.length);
    if (!isAlone && !sameLeaves(leaves.slice(0, shown.length), shown)) return undefined;
    const sources: ChainSource[] = [];
    if (!isAlone || generate.options.expose !== "output") sources.push(this.prompt(generate, promptPath));
    for (const [path, answer] of answers) {
      if (!isGenerated(answer)) return undefined;
      const [, answered] = generateOf(answer, path);
      if (!isAlone && answered.options.expose === "both") return undefined;
      if (answered !== generate && !sameLeaves(leavesOf(answered.input, ""), shown)) return undefined;
      sources.push(...this.#outputs(answer, path));
    }
    return answers.length === 0 ? undefined : sources;
  }

  #outputs(node: Generated, path: string): readonly OutputOutline[] {
    const [promptPath, generate] = generateOf(node, path);
    const prompt = this.prompt(generate, promptPath);
    const count = node.kind === "repeat" ? node.n : 1;
    return Array.from({ length: count }, (_, index) => {
      const spanId = node.kind === "repeat" ? `${path}.repeat[${index}]` : path;
      return { kind: "output", node, index, prompt, spanId };
    });
  }

  #fragment(query: Query & { readonly kind: "fragment" }, path: string): LowerDocument {
    if ("text" in query) return { id: path, text: query.text, title: query.title, salt: this.#context.salt };
    const fragment = this.#context.fragments.get(query.id);
    if (fragment === undefined) throw new Error(`${path}: the fragment was not resolved`);
    return fragment;
  }

  #messagePieces(role: string, text: string, path: string, first: MessageLayout | undefined): readonly Piece[] {
    const layout = first ?? this.#layouts.inside(role);
    if (layout === undefined) throw refusal(role, path);
    return [
      { kind: "template", text: layout.before },
      { kind: "content", text: this.#template.contentFor(role, text) },
      { kind: "template", text: layout.after },
    ];
  }

  /** Role of the prompt's first message. undefined: the prompt is empty. */
  #firstRole(query: Query, isSpan = false): string | undefined {
    if (query.kind === "message") return query.role;
    if (query.kind === "fragment") return this.#template.document.role;
    if (query.kind === "monad") return undefined;
    if (isGenerated(query)) {
      const [, { input, options }] = generateOf(query, "");
      const showsInput = options.expose === "both" || (isSpan && options.expose === undefined);
      return showsInput ? this.#firstRole(input) : "assistant";
    }
    for (const [, child] of childrenOf(query)) {
      const role = this.#firstRole(child, query.kind === "plus");
      if (role !== undefined) return role;
    }
    return undefined;
  }
}

/** Collects the parts of one chain in order. */
class Draft {
  readonly parts: OutlinePart[] = [];
  readonly ratio: number | undefined;
  readonly #opening: MessageLayout | undefined;

  /** @param opening layout of a message at the very start of the prompt. undefined: the same as elsewhere */
  constructor(ratio: number | undefined, opening: MessageLayout | undefined) {
    this.ratio = ratio;
    this.#opening = opening;
  }

  /** Layout of the next message where it is the prompt's first. undefined: the layout is the usual one. */
  get first(): MessageLayout | undefined {
    return this.parts.length === 0 ? this.#opening : undefined;
  }

  add(part: OutlinePart): void {
    this.parts.push(part);
  }

  /** @param fragment the fragment that has this text */
  addText(pieces: readonly Piece[], fragment?: LowerDocument): void {
    this.parts.push(fragment === undefined ? { kind: "text", pieces } : { kind: "text", pieces, fragment });
  }
}

const isGenerated = (query: Query): query is Generated => query.kind === "generate" || query.kind === "repeat";

function generateOf(node: Generated, path: string): readonly [path: string, generate: Generate] {
  return node.kind === "repeat" ? [`${path}.repeat`, node.generate] : [path, node];
}

/** The parts of nested ordered joins in one list, in order, without monads, which put nothing into the prompt. */
function leavesOf(query: Query, path: string): readonly Leaf[] {
  if (query.kind === "monad") return [];
  if (query.kind !== "seq" && query.kind !== "cross" && query.kind !== "par") return [[path, query]];
  return childrenOf(query).flatMap(([step, child]) => leavesOf(child, path + step));
}

/**
 * Whether two lists of leaves are the same. Generates must be the same object, since two equal ones are two runs;
 * messages and fragments are compared by their text.
 */
function sameLeaves(some: readonly Leaf[], others: readonly Leaf[]): boolean {
  return some.length === others.length && some.every(([, query], index) => sameText(query, others[index]?.[1]));
}

function sameText(query: Query, other: Query | undefined): boolean {
  if (query === other) return true;
  if (query.kind === "message")
    return other?.kind === "message" && query.role === other.role && query.text === other.text;
  if (query.kind !== "fragment" || other?.kind !== "fragment") return false;
  if ("id" in query) return "id" in other && query.id === other.id;
  return "text" in other && query.text === other.text && query.title === other.title;
}

function refusal(role: string, path: string): ApiError {
  return new ApiError("chat_template_error", {
    message: `The model's chat template refuses a message of role '${role}' here, or writes it by its neighbours.`,
    param: path,
  });
}
