/** Encodes a question with each of some texts as a cross-encoder reads them: both in one sequence. */
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import type { TokenPair } from "../../worker/contract/embedding.ts";
import { streamSafe } from "../base/stream-safe.ts";
import { LongWords } from "../text/long-words.ts";
import { encodedInSlices, joined, sliceChars, sliceProbe, sliceText, yieldAfter } from "../text/text-slices.ts";
import { readJson } from "./embedding-text.ts";

/** The tokens that a model puts before, between and after two texts. */
interface Around {
  readonly before: Int32Array;
  readonly between: Int32Array;
  readonly after: Int32Array;
  /** How many of those between belong to the first text; undefined: the model tells the texts apart by nothing else. */
  readonly betweenOfFirst: number | undefined;
}

export class PairText {
  readonly #tokenizer: Tokenizer;
  readonly #longWords: LongWords;
  readonly #around: Around;
  readonly #unyielded = { chars: 0 };
  /** Whether a text has the same tokens when it is encoded in slices. */
  readonly #canSlice: boolean;

  /** @throws Error naming the file */
  constructor(folder: string) {
    const file = join(folder, "tokenizer.json");
    const json = readJson(file);
    if (json === undefined) throw new Error(`${file}: no such file`);
    this.#tokenizer = new Tokenizer(json, readJson(join(folder, "tokenizer_config.json")) ?? {});
    this.#longWords = new LongWords(this.#tokenizer);
    const around = this.#findAround();
    if (around === undefined) throw new Error(`${file}: does not say how two texts become one sequence`);
    this.#around = around;
    const cuts = sliceText(sliceProbe, 1).map((cut) => this.#idsOf(cut));
    this.#canSlice = joined(cuts).join() === this.#idsOf(sliceProbe).join();
  }

  /**
   * The pairs of a question and of each text, which have `maxTokens` at most: a text loses its end, and the question
   * loses its own when it takes more than half of them. Long texts are encoded in slices, between which other work runs.
   * @param onPair called with the tokens of each pair; what it throws ends the encoding
   */
  async encode(
    query: string,
    texts: readonly string[],
    maxTokens: number,
    onPair?: (tokens: number) => void,
  ): Promise<readonly TokenPair[]> {
    const { before, between, after, betweenOfFirst } = this.#around;
    const room = Math.max(2, maxTokens - before.length - between.length - after.length);
    const first = await this.#ownTokens(query, Math.floor(room / 2));
    const pairs: TokenPair[] = [];
    for (const text of texts) {
      const second = await this.#ownTokens(text, room - first.length);
      const tokenIds = joined([before, first, between, second, after]);
      const secondFrom = betweenOfFirst === undefined ? tokenIds.length : before.length + first.length + betweenOfFirst;
      onPair?.(tokenIds.length);
      pairs.push({ tokenIds, secondFrom });
    }
    return pairs;
  }

  async #ownTokens(text: string, maxTokens: number): Promise<Int32Array> {
    const encode = (slice: string): Promise<Int32Array> => this.#longWords.inSlices(() => this.#idsOf(slice));
    if (!this.#canSlice || text.length <= sliceChars) {
      const ids = await encode(text);
      await yieldAfter(this.#unyielded, text.length);
      return ids.subarray(0, maxTokens);
    }
    const slices = sliceText(text, sliceChars).map((slice) => [slice, false] as const);
    return await encodedInSlices(slices, encode, { unyielded: this.#unyielded, maxTokens });
  }

  #idsOf(text: string): Int32Array {
    return Int32Array.from(this.#tokenizer.encode(streamSafe(text), { add_special_tokens: false }).ids);
  }

  /** Finds the tokens by encoding a pair of which both texts are known. */
  #findAround(): Around | undefined {
    const [a, b] = ["one", "two"];
    const [first, second] = [this.#idsOf(a), this.#idsOf(b)];
    const { ids, token_type_ids: types } = this.#tokenizer.encode(a, { text_pair: b, return_token_type_ids: true });
    const whole = Int32Array.from(ids);
    const find = (own: Int32Array, from: number): number => {
      for (let at = from; at + own.length <= whole.length; at++) {
        if (whole.subarray(at, at + own.length).join() === own.join()) return at;
      }
      return -1;
    };
    const firstAt = find(first, 0);
    const firstEnd = firstAt + first.length;
    const secondAt = firstAt < 0 ? -1 : find(second, firstEnd);
    // Without a token between, nothing would tell the model where the first text ends.
    if (first.length === 0 || second.length === 0 || secondAt <= firstEnd) return undefined;
    const typesBetween = types.slice(firstEnd, secondAt);
    return {
      before: whole.slice(0, firstAt),
      between: whole.slice(firstEnd, secondAt),
      after: whole.slice(secondAt + second.length),
      betweenOfFirst: types[secondAt] === 1 ? typesBetween.filter((type) => type === 0).length : undefined,
    };
  }
}
