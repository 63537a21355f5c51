import { describe, expect, test } from "bun:test";
import { type ByteGrammar, byteRange, firstRuleSymbol, grammarSymbols } from "../../worker/contract/grammar.ts";
import { GrammarConstraint } from "../../worker/sample/constraint.ts";
import { GrammarMasks, grammarLimits } from "../../worker/sample/grammar-masks.ts";
import { TokenTrie } from "../../worker/sample/token-trie.ts";
import { vocabularyOf } from "../grammar/adversary.ts";
import { fc } from "../support/fast-check.ts";

const byte = (char: string): number => byteRange(char.charCodeAt(0), char.charCodeAt(0));
const nested = firstRuleSymbol;
/** (…(x)…) of any depth; or a, then any number of b. */
const grammar: ByteGrammar = {
  symbols: grammarSymbols([
    [[nested + 1], [byte("a"), nested + 2]],
    [[byte("("), nested + 1, byte(")")], [byte("x")]],
    [[], [byte("b"), nested + 2]],
  ]),
};
const language = /^(?:ab*)$/;
const isNested = (text: string): boolean =>
  /^\(*x\)*$/.test(text) && text.indexOf("x") === text.length - 1 - text.indexOf("x");
/** Beginnings of texts of the grammar. */
const begins = (text: string): boolean =>
  text === "" ||
  language.test(text) ||
  /^\(+$/.test(text) ||
  (/^\(*x\)*$/.test(text) && text.lastIndexOf(")") - text.indexOf("x") <= text.indexOf("x"));

const tokenTexts = fc.array(fc.string({ unit: fc.constantFrom(..."()xab"), maxLength: 5 }), {
  minLength: 1,
  maxLength: 40,
});

describe("a mask", () => {
  test.each([grammarLimits.automatonBytes, 80_000])(
    "allows what some text of the grammar goes on with, and the end where a text is whole (%i bytes remembered)",
    (automatonBytes) => {
      const property = fc.property(tokenTexts, fc.array(fc.nat(), { maxLength: 8 }), (texts, picks) => {
        // Token 0 ends. One character at least leads on from everywhere.
        const tokens = ["", ...texts, ..."()xab"];
        const trie = new TokenTrie(vocabularyOf(tokens));
        const limits = { ...grammarLimits, automatonBytes };
        const constraint = new GrammarConstraint(new GrammarMasks(grammar, trie, tokens.length, limits), [0]);
        let text = "";
        for (const pick of picks) {
          const mask = constraint.mask();
          const allowed = tokens.map((_, id) => ((mask[id >> 5] >> (id & 31)) & 1) === 1);
          const expected = tokens.map((token, id) =>
            id === 0 ? language.test(text) || isNested(text) : token !== "" && begins(text + token),
          );
          expect([text, allowed]).toEqual([text, expected]);
          const ids = tokens.map((_, id) => id).filter((id) => id > 0 && allowed[id]);
          const next = ids[pick % ids.length];
          if (next === undefined) return;
          constraint.accept(next);
          text += tokens[next];
        }
      });
      fc.assert(property, { numRuns: 300 });
    },
  );

  test("takes no more memory for a text that nests ever deeper, and still knows how deep it is", () => {
    const tokens = ["", "(", "((", "x", ")"];
    const masks = new GrammarMasks(grammar, new TokenTrie(vocabularyOf(tokens)), tokens.length);
    const constraint = new GrammarConstraint(masks, [0]);
    const depth = 50_000;
    let most = 0;
    for (let i = 0; i < depth; i++) {
      expect(constraint.mask()[0]).toBe(0b01110);
      constraint.accept(1);
      most = Math.max(most, masks.byteLength);
    }
    expect(most).toBeLessThan(2 * grammarLimits.automatonBytes);
    constraint.accept(3);
    for (let i = 0; i < depth; i++) {
      expect(constraint.mask()[0]).toBe(0b10000);
      constraint.accept(4);
    }
    expect(constraint.mask()[0]).toBe(0b00001);
    expect(masks.byteLength).toBeLessThan(2 * grammarLimits.automatonBytes);
  }, 60_000);

  test("refuses a token that may not come", () => {
    const constraint = new GrammarConstraint(
      new GrammarMasks(grammar, new TokenTrie(vocabularyOf(["", "a", "x"])), 3),
      [0],
    );
    constraint.accept(1);
    expect(() => constraint.accept(2)).toThrow(RangeError);
  });

  test("gives up what is too ambiguous, and keeps what it keeps whole", () => {
    // Each a is read in two ways, which both go on: 2^n readings of n of them.
    const twice: ByteGrammar = {
      symbols: grammarSymbols([
        [[nested + 1, byte(".")]],
        [[byte("x")], [byte("a"), nested + 1, byte("b")], [byte("a"), nested + 1, byte("c")]],
      ]),
    };
    const tokens = ["", ..."abcx."];
    const constraint = new GrammarConstraint(
      new GrammarMasks(twice, new TokenTrie(vocabularyOf(tokens)), tokens.length),
      [0],
    );
    const depth = 40;
    for (let i = 0; i < depth; i++) constraint.accept(1);
    constraint.accept(4);
    for (let i = 0; i < depth; i++) {
      const mask = constraint.mask()[0];
      constraint.accept((mask >> 2) & 1 ? 2 : 3);
    }
    expect(constraint.mask()[0]).toBe(1 << 5);
  });
});
