/** Masks that are shared, made in slices and given up, against the plain way (plain-masks.ts). */
import { describe, expect, test } from "bun:test";
import { type ByteGrammar, byteRange, firstRuleSymbol, grammarSymbols } from "../../worker/contract/grammar.ts";
import { GrammarTooAmbiguous } from "../../worker/sample/byte-automaton.ts";
import { GrammarConstraint } from "../../worker/sample/constraint.ts";
import { GrammarItems } from "../../worker/sample/grammar-items.ts";
import { type GrammarLimits, GrammarMasks, grammarLimits } from "../../worker/sample/grammar-masks.ts";
import { TokenTrie } from "../../worker/sample/token-trie.ts";
import { typicalSchemas } from "../bench/support/mask-schemas.ts";
import { byteTokens, demoVocabulary, vocabularyOf } from "../grammar/adversary.ts";
import { schemaGrammar } from "../grammar/compile.ts";
import { pairs } from "../grammar/pairs.ts";
import { fc } from "../support/fast-check.ts";
import { PlainMasks } from "./plain-masks.ts";

const encoder = new TextEncoder();
const range = (text: string): number => byteRange(text.charCodeAt(0), text.charCodeAt(text.length - 1));

interface Vocabulary {
  readonly trie: TokenTrie;
  readonly tokens: readonly Uint8Array[];
  readonly endTokenId: number;
}

function vocabularyFrom(texts: readonly (string | Uint8Array)[]): Vocabulary {
  const vocabulary = vocabularyOf(texts);
  const tokens = texts.map((text) => (typeof text === "string" ? encoder.encode(text) : text));
  return { trie: new TokenTrie(vocabulary), tokens, endTokenId: 0 };
}

function demo(): Vocabulary {
  const { vocabulary, endTokenId } = demoVocabulary();
  const trie = new TokenTrie(vocabulary);
  return { trie, tokens: Array.from(vocabulary.ends, (_, id) => trie.spelling(id)), endTokenId };
}

function idsOf(mask: Int32Array): number[] {
  return Array.from({ length: 32 * mask.length }, (_, id) => id).filter((id) => (mask[id >> 5] >> (id & 31)) & 1);
}

/** One answer, token by token. */
class Walk {
  private readonly constraint: GrammarConstraint;
  private readonly plain: PlainMasks;
  private readonly vocabulary: Vocabulary;
  private readonly slice: number;
  private bytes: Uint8Array = new Uint8Array(0);

  constructor(masks: GrammarMasks, plain: PlainMasks, vocabulary: Vocabulary, slice: number) {
    this.constraint = new GrammarConstraint(masks, [vocabulary.endTokenId]);
    this.plain = plain;
    this.vocabulary = vocabulary;
    this.slice = slice;
  }

  /** Compares the mask and takes one of its tokens; false at the end. */
  go(pick: number): boolean {
    const expected = this.plain.allowed(this.bytes);
    if (expected.length === 0) {
      expect(() => this.constraint.mask()).toThrow(RangeError);
      return false;
    }
    while (!this.constraint.isReady) this.constraint.prepare({ left: this.slice });
    expect(idsOf(this.constraint.mask())).toEqual(expected);
    const next = expected[pick % expected.length];
    if (next === undefined || next === this.vocabulary.endTokenId) return false;
    this.constraint.accept(next);
    this.bytes = Buffer.concat([this.bytes, this.vocabulary.tokens[next] ?? new Uint8Array(0)]);
    return true;
  }
}

/** Answers that go on in turns over the same masks. @throws GrammarTooAmbiguous */
function compare(
  grammar: ByteGrammar,
  vocabulary: Vocabulary,
  picks: readonly number[][],
  limits: GrammarLimits,
  slice: number,
) {
  const plain = new PlainMasks(grammar, vocabulary.tokens, vocabulary.endTokenId);
  const masks = new GrammarMasks(grammar, vocabulary.trie, vocabulary.tokens.length, limits);
  let walks = picks.map((own) => ({ own: own.values(), walk: new Walk(masks, plain, vocabulary, slice) }));
  while (walks.length > 0) {
    walks = walks.filter(({ own, walk }) => {
      const { value, done } = own.next();
      return done !== true && walk.go(value);
    });
  }
}

/** Over four letters, with rules that may be empty, that recur, and that can be read in many ways. */
const randomGrammar: fc.Arbitrary<ByteGrammar> = fc.integer({ min: 1, max: 5 }).chain((ruleCount) => {
  const byte = fc.constantFrom(...["a", "b", "c", "d", "ab", "bd", "ad"].map(range));
  const rule = fc.integer({ min: 0, max: ruleCount - 1 }).map((index) => firstRuleSymbol + index);
  const alternative = fc.array(fc.oneof({ weight: 3, arbitrary: byte }, rule), { maxLength: 4 });
  const rules = fc.array(fc.array(alternative, { minLength: 1, maxLength: 3 }), {
    minLength: ruleCount,
    maxLength: ruleCount,
  });
  return rules.map((all) => ({ symbols: grammarSymbols(all) }));
});
const randomPicks = fc.array(fc.array(fc.nat(), { maxLength: 7 }), { minLength: 1, maxLength: 3 });
const randomTokens = fc.array(fc.string({ unit: fc.constantFrom(..."abcd"), maxLength: 4 }), {
  minLength: 1,
  maxLength: 30,
});
const randomLimits = fc.constantFrom(grammarLimits, { ...grammarLimits, automatonBytes: 100_000, maskBytes: 40 });

describe("masks are those of the plain way", () => {
  test("for random grammars, whatever is shared, given up and put off", () => {
    let [followed, givenUp] = [0, 0];
    const one = fc.property(
      ...[randomGrammar, randomTokens, randomPicks, randomLimits, fc.constantFrom(1, 40, 1_000_000)],
      (grammar, texts, picks, limits, slice) => {
        const vocabulary = vocabularyFrom(["", ...texts, ..."abcd"]);
        const recurs = new GrammarItems(grammar).recursOnLeft();
        if (recurs) return;
        followed += 1;
        expect(new PlainMasks(grammar, [], 0).hasStart).toBe(true);
        try {
          compare(grammar, vocabulary, picks, limits, slice);
        } catch (error) {
          if (!(error instanceof GrammarTooAmbiguous)) throw error;
          givenUp += 1;
        }
      },
    );
    fc.assert(one, { numRuns: 1_000 });
    expect(followed).toBeGreaterThan(200);
    expect(givenUp).toBeLessThan(followed / 10);
  });

  test.each(["the bytes and marks of JSON", "the demo model's tokens"])("for schemas, over %s", (name) => {
    const vocabulary = name.includes("demo") ? demo() : vocabularyFrom(byteTokens);
    const schemas = [...typicalSchemas.map(({ schema }) => schema), { type: "string", maxLength: 30 }];
    for (const [at, schema] of schemas.entries()) {
      const picks = [1, 2].map((seed) =>
        Array.from({ length: 12 }, (_, i) => (seed * 7_919 + i * 104_729 + at * 31) % 65_537),
      );
      compare(schemaGrammar(schema), vocabulary, picks, grammarLimits, 20_000);
    }
  });
});

describe("a mask that takes long", () => {
  const vocabulary = demo();
  const size = vocabulary.tokens.length;

  test("is made in slices that keep to their work, and is given up when it takes too much", () => {
    const masks = new GrammarMasks(pairs(250), vocabulary.trie, size);
    const constraint = new GrammarConstraint(masks, [0]);
    const slice = 1_000_000;
    let slices = 0;
    const work = () => {
      for (; !constraint.isReady; slices++) {
        const budget = { left: slice };
        constraint.prepare(budget);
        // A byte is read as a whole: 750 stacks, 16 each, looked at some times.
        expect(budget.left).toBeGreaterThan(-200_000);
      }
    };
    expect(work).toThrow(GrammarTooAmbiguous);
    expect(slices).toBeGreaterThan(40);
    expect(slices).toBeLessThan(80);
    // Who comes later is told at once, and so is the one that asks again.
    const later = new GrammarConstraint(masks, [0]);
    for (const again of [later, constraint]) {
      const budget = { left: slice };
      expect(() => again.prepare(budget)).toThrow(GrammarTooAmbiguous);
      expect(budget.left).toBeGreaterThan(slice - 100_000);
    }
  });

  test("is made once for all that are in the same state", () => {
    const masks = new GrammarMasks(schemaGrammar({ type: "object" }), vocabulary.trie, size);
    const [first, second] = [new GrammarConstraint(masks, [0]), new GrammarConstraint(masks, [0])];
    const budget = { left: 0 };
    let spent = 0;
    for (let turn = 0; !first.isReady || !second.isReady; turn++) {
      budget.left = 1_000;
      (turn % 2 === 0 ? first : second).prepare(budget);
      spent += 1_000 - budget.left;
    }
    const alone = { left: 1e9 };
    new GrammarConstraint(new GrammarMasks(schemaGrammar({ type: "object" }), vocabulary.trie, size), [0]).prepare(
      alone,
    );
    expect(spent).toBeLessThan(1.5 * (1e9 - alone.left));
  });

  test("takes no more memory than is allowed", () => {
    const limits = { ...grammarLimits, automatonBytes: 2 ** 20, maskBytes: 2 ** 16 };
    const schema = { type: "string", maxLength: 4_000 };
    const masks = new GrammarMasks(schemaGrammar(schema), vocabulary.trie, size, limits);
    const constraint = new GrammarConstraint(masks, [vocabulary.endTokenId]);
    const letters = vocabulary.tokens.findIndex((token) => Buffer.from(token).toString() === "e");
    constraint.accept(vocabulary.tokens.findIndex((token) => Buffer.from(token).toString() === '"'));
    let most = 0;
    for (let i = 0; i < 4_000; i++) {
      constraint.accept(letters);
      most = Math.max(most, masks.byteLength);
    }
    // The lists double, and a mask may be under way; the rules themselves take 70 KB.
    expect(most).toBeLessThan(3 * 2 ** 20);
    expect(idsOf(constraint.mask()).map((id) => Buffer.from(vocabulary.tokens[id] ?? []).toString())).toEqual(['"']);
  });

  test("ends who holds too much of it, and others begin anew", () => {
    // Each letter can be read in two ways that both go on, and each way is to be remembered.
    const nested = firstRuleSymbol;
    const closers = [..."xyz"].map((closer) => [range("a"), nested, range(closer)]);
    const masks = new GrammarMasks(
      { symbols: grammarSymbols([[[range(".")], ...closers]]) },
      vocabularyFrom(["", ..."axyz."]).trie,
      6,
      { ...grammarLimits, automatonBytes: 600_000 },
    );
    const deep = new GrammarConstraint(masks, [0]);
    const other = new GrammarConstraint(masks, [0]);
    let depth = 0;
    const nest = () => {
      for (; depth < 10_000; depth++) deep.accept(1);
    };
    expect(nest).toThrow(GrammarTooAmbiguous);
    expect(depth).toBeGreaterThan(5);
    deep.release();
    for (const tokenId of [1, 1, 5, 2, 4]) other.accept(tokenId);
    expect(idsOf(other.mask())).toEqual([0]);
    expect(masks.byteLength).toBeLessThan(1_000_000);
  });
});
