/** What a server's card says of a query before anything runs. */
import { expect, test } from "bun:test";
import { attributeFilterSchema } from "../../gateway/corpus/search/filters.ts";
import { checkQuery } from "../../gateway/execute/check-query.ts";
import type { GenerateOptions, Query } from "../../gateway/query/ir.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { engineCard } from "../contract/engine-link.ts";

const text: Query = { kind: "message", role: "user", text: "a" };

function generate(reuse: GenerateOptions["reuse"], input: Query = text): Query {
  return { kind: "generate", options: { model: "", maxTokens: 4, temperature: 0, reuse }, input };
}

function refusalOf(query: Query, card: ModelCard): unknown {
  try {
    checkQuery(query, card, attributeFilterSchema);
    return undefined;
  } catch (error) {
    return error;
  }
}

test("where KV stays as it is, blended reuse is refused by its path", () => {
  const fixed: ModelCard = { ...engineCard, blends: false };
  const inner = generate(undefined, { kind: "seq", children: [text, generate("blend")] });
  const map: Query = {
    kind: "map",
    options: { model: "", maxTokens: 4, temperature: 0, reuse: "blend" },
    inputs: ["a"],
  };
  for (const [query, param] of [
    [generate("blend"), "$.g.reuse"],
    [inner, "$.g.input.seq[1].g.reuse"],
    [map, "$.map.metadata.reuse"],
  ] as const) {
    const message = `${param}: this server holds KV in mx8 (SPANGATE_KV_CODEC), where nothing is blended; leave it out, or write "exact".`;
    expect(refusalOf(query, fixed)).toMatchObject({ code: "invalid_value", param, message });
    expect(refusalOf(query, engineCard)).toBeUndefined();
  }
  expect(refusalOf(generate("exact"), fixed)).toBeUndefined();
});
