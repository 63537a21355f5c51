/**
 * Finds out how a model marks its thinking, from the chat template's source and the tokenizer's control tokens: between
 * two marks (`<think>` … `</think>`; Qwen3, DeepSeek-R1, SmolLM3, Granite 3.3), or as a message of a channel of its own
 * (OpenAI's harmony format; gpt-oss). As in call-syntax.ts a control token stands as a sign, so text in which a model
 * merely quotes a mark that is a token ends no thinking.
 */
import { type CallSign, signChar, signed } from "./call-syntax.ts";
import type { AddedToken } from "./model-text.ts";

export interface ReasoningSyntax {
  /** "pair": thinking stands between two marks. "channels": each part of an answer names its channel before it. */
  readonly kind: "pair" | "channels";
  /** What thinking begins with and what ends it; control tokens are signs. */
  readonly opener: string;
  readonly closer: string;
  /** Marks around the answer itself, which are no part of it; absent: there are none. */
  readonly answer?: { readonly opener: string; readonly closer: string };
  /** What the template would write to end thinking; control tokens are text. */
  readonly end: string;
  /** The two marks as the template writes them. */
  readonly written: { readonly opener: string; readonly closer: string };
  /** true: a mark has a control token, so no text can be taken for it. */
  readonly isToken: boolean;
}

/**
 * How thinking stands when the answer begins. "open": the prompt has opened it. "free": the model may. "closed": the
 * prompt has opened and closed it, and the model should not. "off": this prompt asks for none, and text is text.
 */
export type ThinkingStart = "open" | "free" | "closed" | "off";

/** Most marks that are looked at of one template. */
const maxMarks = 16;
/** Marks that a template or a tokenizer may have, besides those in angle brackets. */
const otherMarks: readonly (readonly [string, string])[] = [
  ["[THINK]", "[/THINK]"],
  ["<|START_THINKING|>", "<|END_THINKING|>"],
  ["◁think▷", "◁/think▷"],
  ["Here is my thought process:", "Here is my response:"],
];
/** `<think>`, `<thinking>`, `<seed:think>`. */
const bracketed = /<((?:[a-z]{1,16}:)?think(?:ing)?)>/g;
const harmonyTokens = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>"] as const;
/** The signs of these tokens, which are the first ones. */
export const channelSigns = {
  channel: signChar(0),
  message: signChar(1),
  start: signChar(2),
  end: signChar(3),
} as const;

export interface FoundReasoning {
  readonly syntax: ReasoningSyntax;
  /** Signs of calls, and behind them those of thinking. */
  readonly signs: readonly CallSign[];
}

/**
 * @param source the template's text
 * @param opening what the template writes between a question and its answer; undefined: that depends on the question
 * @param callSigns signs that a syntax of calls uses already
 * @returns undefined: the model marks no thinking, or has too many control tokens for signs
 * @throws Error when the template opens thinking and nothing is known that ends it
 */
export function findReasoning(
  source: string,
  opening: string | undefined,
  controls: readonly AddedToken[],
  callSigns: readonly CallSign[],
): FoundReasoning | undefined {
  const isKnown = (mark: string): boolean => source.includes(mark) || controls.some(({ content }) => content === mark);
  if (harmonyTokens.every((token) => controls.some(({ content }) => content === token)) && isKnown("<|channel|>")) {
    const found = channelsOf(controls, callSigns);
    if (found !== undefined && source.includes("analysis")) return found;
  }
  const named = [source, ...controls.map(({ content }) => content)].flatMap((text) => [...text.matchAll(bracketed)]);
  const bracketMarks = [...new Set(named.map(([mark]) => mark))].map((mark) => [mark, `</${mark.slice(1)}`] as const);
  const candidates = [...bracketMarks, ...otherMarks].slice(0, maxMarks);
  // What the prompt itself opens is what the model uses.
  const byUse = candidates.toSorted(([a], [b]) => Number(opens(opening, b)) - Number(opens(opening, a)));
  for (const [opener, closer] of byUse) {
    if (!isKnown(opener)) continue;
    if (isKnown(closer)) return pairOf(opener, closer, source, controls, callSigns);
    if (!opens(opening, opener)) continue;
    throw new Error(`it opens thinking with ${opener}, and neither it nor the tokenizer has ${closer} to end it with`);
  }
  return undefined;
}

const opens = (opening: string | undefined, mark: string): boolean => opening?.includes(mark) === true;

function pairOf(
  opener: string,
  closer: string,
  source: string,
  controls: readonly AddedToken[],
  callSigns: readonly CallSign[],
): FoundReasoning | undefined {
  const signs = [...callSigns];
  const [open, close] = [signed(opener, controls, signs), signed(closer, controls, signs)];
  if (open === undefined || close === undefined) return undefined;
  // Granite 3.3 is told to write its answer between marks too.
  const hasAnswer = source.includes("<response></response>");
  const answer = hasAnswer ? { answer: { opener: "<response>", closer: "</response>" } } : {};
  const end = hasAnswer ? `${closer}<response>` : `\n${closer}\n\n`;
  const [written, isToken] = [{ opener, closer }, open !== opener && close !== closer];
  return { syntax: { kind: "pair", opener: open, closer: close, ...answer, end, written, isToken }, signs };
}

function channelsOf(controls: readonly AddedToken[], callSigns: readonly CallSign[]): FoundReasoning | undefined {
  // No template with these tokens writes calls in a way that can be read, so its signs are the first ones.
  if (callSigns.length > 0) return undefined;
  const signs: CallSign[] = [];
  for (const token of harmonyTokens) signed(token, controls, signs);
  const written = { opener: "<|channel|>analysis<|message|>", closer: "<|channel|>final<|message|>" };
  const [opener, closer] = [signed(written.opener, controls, signs), signed(written.closer, controls, signs)];
  if (opener === undefined || closer === undefined) return undefined;
  const end = `<|end|><|start|>assistant${written.closer}`;
  return { syntax: { kind: "channels", opener, closer, end, written, isToken: true }, signs };
}

/**
 * @param prompt a whole prompt as the template renders it
 * @param questionEnd where the last message's content ends in it
 */
export function thinkingStart(
  { written, isToken }: ReasoningSyntax,
  prompt: string,
  questionEnd: number,
): ThinkingStart {
  const tail = prompt.slice(questionEnd);
  const [opened, closed] = [tail.lastIndexOf(written.opener), tail.lastIndexOf(written.closer)];
  if (opened > closed) return "open";
  if (closed >= 0) return "closed";
  return isToken || prompt.includes(written.opener) ? "free" : "off";
}
