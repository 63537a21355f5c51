/** Grammars begin behind the thinking: whatever is drawn, what is read as the answer is of the grammar. */
import { describe, expect, test } from "bun:test";
import { AnswerReader } from "../../gateway/generate/answer-reader.ts";
import { openThinking } from "../../gateway/generate/thinking.ts";
import { largestGrammar } from "../../gateway/grammar/budget.ts";
import { TokenBytes } from "../../gateway/text/detokenizer.ts";
import { answerGrammar } from "../../gateway/tools/answer-grammar.ts";
import { GrammarConstraint } from "../../worker/sample/constraint.ts";
import { GrammarMasks } from "../../worker/sample/grammar-masks.ts";
import { ThinkingConstraint } from "../../worker/sample/thinking-constraint.ts";
import { TokenTrie } from "../../worker/sample/token-trie.ts";
import { Choices } from "../sim/random.ts";
import { textSide } from "../text/models.ts";
import { asksThinking, reasoningFamilies, reasoningModels, written } from "../text/reasoning-models.ts";

const schema = { type: "object", properties: { a: { enum: [1, 2] } }, required: ["a"], additionalProperties: false };

describe.each(reasoningFamilies)("%s", (family) => {
  const model = reasoningModels[family];
  const { template, tokenizer } = textSide(model);
  const tokenBytes = new TokenBytes(model.tokenizer, template.signs);
  const vocabulary = tokenBytes.vocabulary();
  const trie = new TokenTrie(vocabulary);
  const endId = model.tokenizer.added_tokens.find(({ content }) => content === model.config.eos_token)?.id ?? -1;
  const templateTokenIds = (text: string) => tokenizer.encode([{ kind: "template", text }], false);
  const opened = openThinking({ templateFacts: template, templateTokenIds }, [], {
    variables: asksThinking[family],
    thinkingTokens: 12,
  });
  if (opened?.limit === undefined) throw new Error("a family that thinks");
  const { reading, limit } = opened;
  const rules = { format: { kind: "schema" as const, schema, param: "schema" }, thinking: reading };
  const made = answerGrammar(rules, largestGrammar);
  if (!("grammar" in made)) throw new Error("a grammar");
  const { grammar } = made;

  const constrained = (withLimit: boolean) => {
    const inner = new GrammarConstraint(new GrammarMasks(grammar, trie, vocabulary.ends.length), [endId]);
    return withLimit ? new ThinkingConstraint(limit, trie, vocabulary.ends.length, inner) : inner;
  };
  const read = (ids: readonly number[]) => {
    const reader = new AnswerReader(tokenBytes, { stops: [], reasoning: reading });
    const events = [...reader.push(ids, undefined).events, ...reader.end()];
    return events.map((event) => (event.type === "text" ? event.text : "")).join("");
  };

  test("takes what its model writes, and nothing else behind the thinking", () => {
    const constraint = constrained(false);
    const ids = templateTokenIds(written[family]("is {it} 1?", '{"a":1}'));
    for (const id of ids) constraint.accept(id);
    const bare = constrained(false);
    expect(() => {
      for (const id of templateTokenIds(written[family]("x", "no json"))) bare.accept(id);
    }).toThrow("may not come here");
  });

  test("whoever draws at random ends with JSON of the schema, however long the thinking would be", () => {
    const random = new Choices(5);
    for (let round = 0; round < 12; round++) {
      const constraint = constrained(true);
      const ids: number[] = [];
      for (let drawn = 0; drawn < 200; drawn++) {
        const allowed = [...constraint.mask()].flatMap((word, at) =>
          Array.from({ length: 32 }, (_, bit) => at * 32 + bit).filter((_, bit) => ((word >> bit) & 1) === 1),
        );
        const id = allowed.includes(endId) ? endId : random.pick(allowed);
        if (id === endId) break;
        constraint.accept(id);
        ids.push(id);
      }
      expect([1, 2]).toContain((JSON.parse(read(ids)) as { a: number }).a);
    }
  });
});
