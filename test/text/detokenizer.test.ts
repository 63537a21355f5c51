import { describe, expect, test } from "bun:test";
import { Detokenizer, TokenBytes } from "../../gateway/text/detokenizer.ts";
import { fc } from "../support/fast-check.ts";
import { models, textSide } from "./models.ts";

const bytes = new TokenBytes(models.chatml.tokenizer);
const { tokenizer } = textSide(models.chatml);

function run(tokenIds: readonly number[], stops: readonly string[]) {
  const detokenizer = new Detokenizer(bytes, stops);
  const deltas: string[] = [];
  for (const id of tokenIds) {
    const { text, stoppedBy } = detokenizer.push([id]);
    deltas.push(text);
    if (stoppedBy !== undefined) return { deltas, text: deltas.join(""), stoppedBy };
  }
  const { text, stoppedBy } = detokenizer.end();
  deltas.push(text);
  return { deltas, text: deltas.join(""), stoppedBy };
}

describe("detokenizer", () => {
  test("gives back any text, and no half character on the way", () => {
    fc.assert(
      fc.property(fc.string({ unit: "grapheme", minLength: 1 }), (text) => {
        const { deltas, text: all } = run([...tokenizer.encodeText(text)], []);
        expect(all).toBe(text.toWellFormed());
        if (!text.toWellFormed().includes("\uFFFD")) expect(deltas.join("\n")).not.toContain("\uFFFD");
      }),
    );
  });

  test("nothing yet is the empty text, a broken character at the end is U+FFFD", () => {
    const ids = [...tokenizer.encodeText("a😀")];
    expect(new Detokenizer(bytes, []).push([])).toEqual({ text: "", stoppedBy: undefined });
    expect(run(ids.slice(0, -1), []).text).toBe("a\uFFFD");
  });

  test("special tokens have no text", () => {
    expect(run([1, ...tokenizer.encodeText("x"), 2], []).text).toBe("x");
  });

  test("a byte order mark is kept", () => {
    expect(run([...tokenizer.encodeText("\uFEFFx")], []).text).toBe("\uFEFFx");
  });

  test("a stop string split over tokens never shows, not even its start", () => {
    const { deltas, text, stoppedBy } = run([...tokenizer.encodeText("ab STOP cd")], ["STOP", "cd"]);
    expect({ text, stoppedBy }).toEqual({ text: "ab ", stoppedBy: "STOP" });
    expect(deltas.every((delta) => !delta.includes("S"))).toBe(true);
  });

  test("what only began like a stop string comes out in full", () => {
    expect(run([...tokenizer.encodeText("ab STO")], ["STOP"]).text).toBe("ab STO");
    expect(run([...tokenizer.encodeText("aaab")], ["aab"]).text).toBe("a");
  });

  test("the first of several stop strings wins, wherever the tokens end", () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom("a", "b", "c"), maxLength: 20 }), (text) => {
        const stops = ["abc", "cc", "bab"];
        const cut = Math.min(...stops.map((stop) => text.indexOf(stop)).filter((index) => index >= 0), text.length);
        expect(run([...tokenizer.encodeText(text)], stops).text).toBe(text.slice(0, cut));
      }),
    );
  });

  test("a sentencepiece vocabulary: bytes, spaces, and the space in front dropped", () => {
    const pieces = new TokenBytes({
      added_tokens: [],
      model: { vocab: { "▁Hi": 0, "▁you": 1, "<0xC3>": 2, "<0xA9>": 3 } },
      decoder: { type: "Sequence", decoders: [{ type: "ByteFallback" }, { type: "Fuse" }] } as { type: string },
    });
    const detokenizer = new Detokenizer(pieces, []);
    expect([0, 1, 2, 3].map((id) => detokenizer.push([id]).text)).toEqual(["Hi", " you", "", "é"]);
    // What goes on from a text begins behind its last word.
    expect(new Detokenizer(pieces, [], { goesOn: true }).push([0, 1]).text).toBe(" Hi you");
  });

  test("an unknown decoder is refused at load", () => {
    const unknown = { added_tokens: [], model: { vocab: {} }, decoder: { type: "CTC" } };
    expect(() => new TokenBytes(unknown)).toThrow("decoder CTC is not supported");
  });
});
