import { type ByteGrammar, byteRange, firstRuleSymbol, grammarSymbols } from "../../worker/contract/grammar.ts";

/** Any text in which one of so many pairs of letters comes: each is looked for by itself, so nothing is ever decided. */
export function pairs(count: number): ByteGrammar {
  const any = byteRange(0x20, 0x7e);
  const letter = (i: number) => byteRange(97 + (i % 26), 97 + (i % 26));
  const looked = Array.from({ length: count }, (_, i) => {
    const [before, between] = [firstRuleSymbol + 1 + 2 * i, firstRuleSymbol + 2 + 2 * i];
    return [
      [
        [any, before],
        [letter(i), between],
      ],
      [[any, between], [letter(i + 7)], [any]],
    ];
  });
  const whole = looked.map((_, i) => [firstRuleSymbol + 1 + 2 * i]);
  return { symbols: grammarSymbols([whole, ...looked.flat()]) };
}
