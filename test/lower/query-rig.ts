/** Span queries for tests, their texts' naive flattening, and what a plan shows, worked out from the plan alone. */
import { Tokenizer } from "@huggingface/tokenizers";
import { Lowerer } from "../../gateway/lower/plan.ts";
import type { GeneratedOutput, LoweredGenerate, QueryContext } from "../../gateway/lower/query-context.ts";
import { QueryLowerer } from "../../gateway/lower/query-lowerer.ts";
import type {
  Fragment,
  Generate,
  GenerateOptions,
  Message,
  Ordered,
  Plus,
  Query,
  Repeat,
} from "../../gateway/query/ir.ts";
import type { ModelText } from "../../gateway/text/model-text.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { SegmentRef, SubmitMessage, TokenPlan } from "../../worker/contract/messages.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { textSide } from "../text/models.ts";

export const salt = "dGVuYW50" as CacheSalt;
export const corpusSalt = "Y29ycHVz" as CacheSalt;
export const card = { digest: "ab".repeat(32), blockTokens: 4, contextTokens: 100_000 };

const message =
  (role: Message["role"]) =>
  (text: string): Message => ({ kind: "message", role, text });
export const system = message("system");
export const user = message("user");
export const assistant = message("assistant");
export const seq = (...children: Query[]): Ordered => ({ kind: "seq", children });
export const plus = (...children: Query[]): Plus => ({ kind: "plus", children });
export const behind = (preamble: Query, ...children: Query[]): Plus => ({ kind: "plus", children, preamble });
export const fragment = (id: string): Fragment => ({ kind: "fragment", id });
export const g = (input: Query, options: Partial<GenerateOptions> = {}): Generate => ({
  kind: "generate",
  input,
  options: { model: "", maxTokens: 0, temperature: 0, ...options },
});
export const repeat = (n: number, generate: Generate): Repeat => ({ kind: "repeat", n, generate });

export function lowererOf(
  model: ModelText,
  { blockTokens = card.blockTokens, contextTokens = card.contextTokens } = {},
) {
  const options = { ...textSide(model), card: { ...card, blockTokens, contextTokens }, cacheBytes: 1_000_000 };
  const spans = new Lowerer(options);
  return { ...options, spans, lowerer: new QueryLowerer({ ...options, spans }) };
}

/** Every fragment's text is its id with more; every output's text is by `said`, and known unless it is undefined. */
export function contextOf(
  tokenizer: { encode: ReturnType<typeof textSide>["tokenizer"]["encode"] },
  said: (node: Generate | Repeat, index: number) => string | undefined = () => "an answer",
): QueryContext {
  const ids = ["a", "b", "c", "d", "long"];
  const texts = new Map(
    ids.map((id) => [id, id === "long" ? "the ".repeat(300).trim() : `the thing ${id} in the user`]),
  );
  const output = (text: string | undefined): GeneratedOutput => {
    const tokenIds = tokenizer.encode([{ kind: "content", text: text ?? "x ".repeat(20) }], false);
    return { tokenIds, known: text !== undefined };
  };
  return {
    salt,
    fragments: new Map([...texts].map(([id, text]) => [id, { id, text, salt: corpusSalt }])),
    outputs: (node) =>
      Array.from({ length: node.kind === "repeat" ? node.n : 1 }, (_, index) => output(said(node, index))),
  };
}

/** What the last token of a run sees, itself too: ids by position. Throws when a position is missing or taken twice. */
export function visibleTo(plan: TokenPlan, index: number): readonly number[] {
  const run = plan.runs[index];
  if (run === undefined) throw new Error(`no run ${index}`);
  const visible: number[] = [];
  const put = (position: number, tokenId: number): void => {
    if (visible[position] !== undefined) throw new Error(`run ${index} sees two tokens at position ${position}`);
    visible[position] = tokenId;
  };
  for (const segment of run.sees) {
    const seen = plan.runs[segment.run];
    if (seen === undefined || segment.run >= index) throw new Error(`run ${index} sees run ${segment.run}`);
    tokensOf(seen.tokenIds, segment).forEach((tokenId, at) => {
      put(seen.position + segment.firstToken + at + segment.offset, tokenId);
    });
  }
  for (const [at, tokenId] of run.tokenIds.entries()) put(run.position + at, tokenId);
  if (Object.keys(visible).length !== visible.length) throw new Error(`run ${index} sees a gap`);
  return visible;
}

function tokensOf(tokenIds: Int32Array, { firstToken, tokenCount }: SegmentRef): readonly number[] {
  if (firstToken < 0 || tokenCount < 1 || firstToken + tokenCount > tokenIds.length) throw new Error("bad segment");
  return [...tokenIds.subarray(firstToken, firstToken + tokenCount)];
}

/** Strings that a ChatML model reads, by the rules of the language and no more. */
export class NaiveChatml {
  readonly #context: QueryContext;
  readonly #said: (node: Generate | Repeat, index: number) => string | undefined;
  readonly #tokenizer: Tokenizer;
  /** What each run's last token sees, itself too, as text. */
  readonly runTexts = new Set<string>();

  constructor(model: ModelText, context: QueryContext, said: (node: Generate | Repeat, index: number) => string) {
    this.#context = context;
    this.#said = said;
    this.#tokenizer = new Tokenizer(model.tokenizer, model.config);
  }

  tokens(text: string): readonly number[] {
    return this.#tokenizer.encode(text, { add_special_tokens: false }).ids;
  }

  /** The prompt of a generate, and its answer's opening. */
  prompt(generate: Generate): string {
    const prompt = this.#chain(generate.input, "");
    const whole = `${prompt}<|im_start|>assistant\n`;
    this.runTexts.add(whole);
    return whole;
  }

  /** Text of a chain; `before` is what it sees besides. Every end of a stretch of its own is the end of a run. */
  #chain(query: Query, before: string): string {
    let text = "";
    let own = false;
    const endRun = (): void => {
      if (own) this.runTexts.add(before + text);
      own = false;
    };
    const walk = (part: Query): void => {
      if (part.kind === "message") text += framed(part.role, part.text);
      else if (part.kind === "fragment") text += this.#fragment(part);
      else if (part.kind === "generate" || part.kind === "repeat") {
        const generate = part.kind === "repeat" ? part.generate : part;
        if (generate.options.expose === "both") walk(generate.input);
        text += this.#answers(part).join("");
      } else if (part.kind === "plus") {
        const inside = this.#plus(part, "");
        if (inside !== "") endRun();
        text += inside;
        return;
      } else if (part.kind === "seq" || part.kind === "cross" || part.kind === "par") {
        part.children.forEach(walk);
        return;
      } else if (part.kind === "monad") return;
      own = true;
    };
    walk(query);
    endRun();
    return text;
  }

  #plus({ preamble, children }: Plus, outer: string): string {
    const own = preamble === undefined ? "" : this.#chain(preamble, outer);
    return own + children.map((child) => this.#span(child, outer + own)).join("");
  }

  /** A child of a plus. Outputs behind the prompt that they answer keep what they saw. */
  #span(child: Query, before: string): string {
    if (child.kind === "plus") return this.#plus(child, before);
    const parts = child.kind === "seq" ? child.children : [child];
    const [first, only] = parts;
    if (first !== undefined && only === undefined && first !== child) return this.#span(first, before);
    const last = parts.at(-1);
    const generate = last?.kind === "repeat" ? last.generate : last;
    if (last === undefined || generate?.kind !== "generate" || before !== "") return this.#chain(child, before);
    const isBehind = parts.length === 2 && first === generate.input && generate.options.expose !== "both";
    if (parts.length > 1 && !isBehind) return this.#chain(child, before);
    const prompt = this.#chain(generate.input, "");
    const answers = this.#answers(last as Generate | Repeat);
    for (const answer of answers) this.runTexts.add(prompt + answer);
    const showsPrompt = parts.length > 1 || generate.options.expose !== "output";
    return (showsPrompt ? prompt : "") + answers.join("");
  }

  #answers(node: Generate | Repeat): readonly string[] {
    const count = node.kind === "repeat" ? node.n : 1;
    return Array.from({ length: count }, (_, index) => framed("assistant", this.#said(node, index) ?? ""));
  }

  #fragment(query: Fragment): string {
    const source = "id" in query ? this.#context.fragments.get(query.id) : query;
    const title = source?.title === undefined ? "" : `Title: ${source.title}\n`;
    return framed("document", title + (source?.text ?? ""));
  }
}

const framed = (role: string, text: string): string => `<|im_start|>${role}\n${text}<|im_end|>\n`;

/** A lowered generate as the worker gets it. */
export function submitOf(lowered: LoweredGenerate, maxTokens = 8, reuse = true): SubmitMessage {
  const params = { maxTokens, minTokens: 0, ignoreEos: true, stopTokenIds: [], sampling: greedySampling };
  return { type: "submit", requestId: "r", plan: lowered.plan, params, reuse, closeTokenIds: lowered.closeTokenIds };
}
