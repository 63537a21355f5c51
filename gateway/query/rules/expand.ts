/** Expands nodes that are only another way to write joins and generates. Each rule removes one such node. */
import {
  defaultTemperature,
  type Generate,
  type GenerateOptions,
  type MapInputs,
  type Ordered,
  type Plus,
  type Query,
  type Retrieved,
} from "../ir.ts";
import { isOrdered, nothing } from "../nodes.ts";
import { mapChildren } from "../transform.ts";
import { type Rule, ruleOn } from "./rule.ts";

const chatToGenerate = ruleOn(
  ["chat"],
  "chat-to-generate",
  "chat[q…] -> g(seq[q…]), the server's defaults",
  (chat) => ({
    kind: "generate",
    options: { model: "", maxTokens: 0, temperature: defaultTemperature },
    input: { kind: "seq", children: chat.children },
  }),
);

/**
 * Puts the same `first` object before every child, so a generate in it is one run that is shown several times. Nothing
 * goes before a monad, since it puts nothing into the prompt.
 */
const zipToJoin = ruleOn(["zip"], "zip-to-join", "zip(a, join[b, c]) -> join[a, b, a, c]", ({ first, second }) => {
  const join = joinOf(second);
  if (join === undefined) return { kind: "seq", children: [first, second] };
  return { ...join, children: join.children.flatMap((child) => (child.kind === "monad" ? [child] : [first, child])) };
});

function joinOf(query: Query): Ordered | Plus | undefined {
  if (query.kind === "map") return generatesOf(query);
  if (query.kind === "retrieved") return { kind: "plus", children: query.fragments };
  return isOrdered(query) || query.kind === "plus" ? query : undefined;
}

function generatesOf({ options, inputs }: MapInputs): Plus {
  const generate = (text: string): Generate => ({
    kind: "generate",
    options,
    input: { kind: "message", role: "user", text },
  });
  return { kind: "plus", children: inputs.map(generate) };
}

/** A map may stay one request only outside all prompts. */
const mapToPlus = ruleOn(
  ["map"],
  "map-to-plus",
  "map[s…] -> plus[g(user s)…], inside a prompt or where the engine takes no map",
  (map, { place, bulkMap }) => {
    const mayStay = (place === "root" || place === "program") && bulkMap;
    return mayStay ? undefined : generatesOf(map);
  },
);

/** Copies the generate: the repeat's one sample is a run of its own, even where its generate also stands elsewhere. */
const repeatOnce = ruleOn(["repeat"], "repeat-once", "repeat 1 g(x) -> g(x)", ({ n, generate }) =>
  n === 1 ? { ...generate } : undefined,
);

/**
 * Prepares the fragments by generates of one token, with the model that reads them. These run while the rest of the
 * query is still on its way. The rule handles everything that belongs to this generate, down to the next generates.
 */
const retrievedToPlus = ruleOn(
  ["generate"],
  "retrieved-to-plus",
  "g(.. retrieved[f…] ..) -> g(.. seq[monad plus[g1(f)…], plus[f…]] ..)",
  (generate) => {
    const warming: GenerateOptions = { model: generate.options.model, maxTokens: 1, temperature: 0 };
    const expand = (query: Query): Query => {
      if (query.kind === "retrieved") return preparedThenRead(query, warming);
      return isOrdered(query) || query.kind === "plus" ? mapChildren(query, expand) : query;
    };
    const input = expand(generate.input);
    return input === generate.input ? undefined : { ...generate, input };
  },
);

function preparedThenRead({ fragments }: Retrieved, options: GenerateOptions): Query {
  if (fragments.length === 0) return nothing;
  const generates = fragments.map((input): Generate => ({ kind: "generate", options, input }));
  return {
    kind: "seq",
    children: [
      { kind: "monad", child: { kind: "plus", children: generates } },
      { kind: "plus", children: fragments },
    ],
  };
}

/** No generate reads these fragments, so no model is known for them. Under a monad they are prepared without one. */
const retrievedAlone = ruleOn(
  ["retrieved"],
  "retrieved-alone",
  "retrieved[f…] -> plus[f…], outside prompts",
  ({ fragments }, { place }) => (place === "prompt" ? undefined : { kind: "plus", children: fragments }),
);

export const expandRules: readonly Rule[] = [
  chatToGenerate,
  zipToJoin,
  mapToPlus,
  repeatOnce,
  retrievedAlone,
  retrievedToPlus,
].map((rule) => ({ ...rule, phase: "expand" }));
