/** Texts whose spans have an exact length in tokens of the demo model. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import { demoModelFolder } from "../../../gateway/cli/demo-corpora.ts";
import { CommandError } from "../../../gateway/cli/support/command.ts";

const vocabulary =
  "amber birch cedar delta ember fjord grove heron inlet junco knoll larch maple north ocean pearl".split(" ");

/** Deterministic words: the same seed gives the same ones, other seeds others from the first character on. */
export function fillerWords(seed: number, count: number): string[] {
  let state = (Math.imul(seed, 2_654_435_761) + 1) >>> 0;
  const picked = Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return vocabulary[(state >>> 16) % vocabulary.length] ?? "";
  });
  return [`${seed}:`, ...picked];
}

function readJson(name: string): object {
  return JSON.parse(readFileSync(join(demoModelFolder, name), "utf8"));
}

export class SpanTexts {
  readonly #tokenizer = new Tokenizer(readJson("tokenizer.json"), readJson("tokenizer_config.json"));

  /** Tokens of the span that a document of this text becomes. */
  spanTokens(text: string): number {
    return this.messageTokens("document", text);
  }

  /** Tokens of `<|im_start|>{role}\n{text}<|im_end|>\n`. */
  messageTokens(role: string, text: string): number {
    return this.#count(`${role}\n${text}`) + this.#count("\n") + 2;
  }

  /** Tokens of `<|im_start|>assistant\n`, which an answer goes on from. */
  get answerStartTokens(): number {
    return this.#count("assistant\n") + 1;
  }

  /** A text whose span is exactly `tokens` long: words, then digits, which are a token each. */
  textOf(tokens: number, seed: number): string {
    const words = fillerWords(seed, tokens);
    while (words.length > 0 && this.spanTokens(words.join(" ")) > tokens) {
      words.length -= Math.max(1, Math.floor((this.spanTokens(words.join(" ")) - tokens) / 4));
    }
    const base = words.join(" ");
    const text = base + "7".repeat(Math.max(0, tokens - this.spanTokens(base)));
    if (this.spanTokens(text) !== tokens) throw new CommandError(`no text of ${tokens} tokens for seed ${seed}`);
    return text;
  }

  #count(text: string): number {
    return this.#tokenizer.encode(text, { add_special_tokens: false }).ids.length;
  }
}
