/** Rules of text up to a mark in it; so an answer's grammar begins behind the mark that ends the model's thinking. */
import { byteRange, type GrammarSymbol } from "../../worker/contract/grammar.ts";
import { type Alternative, type GrammarBuilder, literal } from "../grammar/builder.ts";
import { signByte, signedBytes } from "../text/call-syntax.ts";
import type { ReasoningReading } from "../text/reasoning-reader.ts";
import { channelSigns } from "../text/reasoning-syntax.ts";

/** Greatest byte that stands in texts; the bytes above it stand for signs. */
export const lastTextByte = signByte(0) - 1;

/** The bytes of texts without the given ones, which are in rising order, as ranges. */
export function gaps(bytes: readonly number[]): readonly GrammarSymbol[] {
  const starts = [0, ...bytes.map((byte) => byte + 1)];
  const ends = [...bytes.map((byte) => byte - 1), lastTextByte];
  return starts.flatMap((start, index) => {
    const end = ends[index] ?? lastTextByte;
    return start <= end ? [byteRange(start, end)] : [];
  });
}

/**
 * Any text up to the first place of the mark in it, then `behind`. State i has read i bytes of the mark (the automaton
 * of Knuth, Morris and Pratt).
 * @param mayEnd whether the text may end without the mark
 */
export function textTo(
  it: GrammarBuilder,
  wanted: readonly number[],
  behind: Alternative,
  mayEnd: boolean,
): GrammarSymbol {
  const states = wanted.map(() => it.declare());
  for (const [read, state] of states.entries()) {
    const next = (byte: number): number => {
      const bytes = [...wanted.slice(0, read), byte];
      let fits = bytes.length;
      while (!bytes.slice(bytes.length - fits).every((each, index) => each === wanted[index])) fits -= 1;
      return fits;
    };
    const special = [...new Set(wanted)].sort((a, b) => a - b);
    const on = (fits: number): Alternative => (fits === wanted.length ? behind : states.slice(fits, fits + 1));
    const others = gaps(special.filter((byte) => byte <= lastTextByte)).map((range) => [range, ...on(0)]);
    const ends = mayEnd ? [[]] : [];
    it.define(state, [...ends, ...others, ...special.map((byte) => [byteRange(byte, byte), ...on(next(byte))])]);
  }
  const [start] = states;
  if (start === undefined) throw new Error("a mark has a character");
  return start;
}

/** Line breaks that a model writes between its thinking and its answer. */
const mostSpaces = 2;

const signed = (text: string): Alternative => signedBytes(text).map((byte) => byteRange(byte, byte));

/**
 * The rule of an answer before which the model may think, or does where the prompt has opened the thinking.
 * @throws GrammarTooLarge
 */
export function thinkingRule(
  it: GrammarBuilder,
  { syntax, isOpen }: ReasoningReading,
  answer: GrammarSymbol,
): GrammarSymbol {
  if (syntax.kind === "channels") return channelsRule(it, answer);
  const space = it.rule([literal(" "), literal("\n")]);
  const spaces = it.repeat("between", [space], 0, mostSpaces);
  const marks = syntax.answer;
  const marked = marks && [...signed(marks.opener), ...spaces, answer, ...spaces, ...signed(marks.closer)];
  const behind = it.rule(marked === undefined ? [[answer]] : [[answer], marked]);
  const thinking = textTo(it, signedBytes(syntax.closer), [...spaces, behind], false);
  return isOpen ? thinking : it.rule([[answer], [...signed(syntax.opener), thinking]]);
}

/** Messages in the channel of thinking, then one in the channel of the answer. */
function channelsRule(it: GrammarBuilder, answer: GrammarSymbol): GrammarSymbol {
  const { channel, message, start, end } = channelSigns;
  const text = it.repeat("thought", [byteRange(0, lastTextByte)], 0, Number.POSITIVE_INFINITY);
  const part = it.declare();
  it.define(part, [
    [...signed(`${channel}final${message}`), answer],
    [...signed(`${channel}analysis${message}`), ...text, ...signed(`${end}${start}assistant`), part],
  ]);
  return part;
}
