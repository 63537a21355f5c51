/**
 * Fixed requests give the token plans and grammars that were recorded once: moving code must change no token and no key. A change
 * of lowering that is meant changes these hashes, and says so in its commit.
 */
import { describe, expect, test } from "bun:test";
import type { Generate, Repeat } from "../../gateway/query/ir.ts";
import type { PlanRun, SubmitMessage, TokenPlan } from "../../worker/contract/messages.ts";
import { chatRig, post, question } from "../http/chat-rig.ts";
import { asked, tool } from "../http/chat-tools-request.ts";
import { ask, readyRig } from "../http/query-rig.ts";
import { behind, contextOf, fragment, g, lowererOf, plus, repeat, seq, system, user } from "../lower/query-rig.ts";
import { mistralModel, models } from "../text/models.ts";
import { toolModels } from "../text/tool-models.ts";
import recorded from "./recorded-plans.json";

const hashes: Readonly<Record<string, string>> = recorded;
const named = new Set<string>();

function expectRecorded(name: string, hash: string): void {
  named.add(name);
  expect(hash).toBe(hashes[name] ?? "not recorded");
}

/** All that a run is, as text in a fixed order of fields. */
const runText = ({ kind, tokenIds, position, sees, blockKeys, rootKey, spanId, quotes, blend }: PlanRun): string =>
  JSON.stringify([
    [kind, [...tokenIds], position, blockKeys, rootKey, spanId ?? null, quotes ?? null],
    sees.map(({ run, firstToken, tokenCount, offset }) => [run, firstToken, tokenCount, offset]),
    blend && [
      blend.recomputeRatio,
      blend.copies.map(({ run, firstToken, tokenCount, at }) => [run, firstToken, tokenCount, at]),
    ],
  ]);

const hashOf = (texts: readonly string[]): string =>
  new Bun.CryptoHasher("sha256").update(texts.join("\n")).digest("hex").slice(0, 16);
const planText = ({ runs }: TokenPlan): string => runs.map(runText).join("\n");
const submitText = ({ plan, closeTokenIds, params, reuse }: SubmitMessage): string =>
  JSON.stringify([
    planText(plan),
    [...(closeTokenIds ?? [])],
    params.maxTokens,
    params.stopTokenIds,
    params.grammar ?? null,
    reuse,
  ]);
/** Requests of a tree may be sent in any order: that of their texts is fixed. */
const submitsHash = (submits: readonly SubmitMessage[]): string =>
  `${submits.length} ${hashOf(submits.map(submitText).sort())}`;

const messages = [
  { role: "system", content: "You answer from the documents." },
  { role: "user", content: "Who is the manager of Anna?" },
];
const documents = [
  { id: "d1", text: "Anna lives in Oslo, the town in the row by the sea." },
  { id: "d2", title: "People", text: "The manager of Anna is Tom, who likes the sea and the mountains.\n\nTom is 47." },
];
const talk = [
  ...messages,
  { role: "assistant", content: "Tom. " },
  { role: "user", content: "And who is <|im_end|> Tom's?\n" },
];
const chat = { ...question, messages };
const fileSearch = { vector_store_ids: ["vs_1"], max_num_results: 2 };
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 9 }, age: { type: "integer", minimum: 0, maximum: 120 } },
  required: ["name"],
  additionalProperties: false,
};
const format = { type: "json_schema", json_schema: { name: "person", schema } };
const path = "/v1/completions";
const text = { model: "fake-model", max_tokens: 4 };
const called = [
  ...asked.messages,
  {
    role: "assistant",
    content: null,
    tool_calls: [{ id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city":"Oslo"}' } }],
  },
  { role: "tool", tool_call_id: "call_1", content: "rain" },
];

const generationCases = {
  "a chat": { body: chat },
  "a chat of several turns": { body: { ...chat, messages: talk } },
  documents: { body: { ...chat, documents } },
  "documents under full attention": { body: { ...chat, documents, spangate: { attention: "full" } } },
  "documents that are not reused": { body: { ...chat, documents, spangate: { reuse: false } } },
  "documents of a corpus": { body: { ...chat, documents, file_search: fileSearch } },
  "a salt of its own": { body: { ...chat, documents, cache_salt: "mine" } },
  "three choices": { body: { ...chat, n: 3, temperature: 1, seed: 7 } },
  "Llama 3": { body: { ...chat, messages: talk, documents }, model: models.llama3 },
  "a strict template": { body: { ...chat, messages: talk, documents }, model: models.strict },
  "a template that folds": { body: { ...chat, messages: talk, documents }, model: models.folding },
  Granite: { body: { ...chat, messages: talk, documents }, model: models.granite },
  Mistral: { body: { ...chat, messages: talk.slice(1), documents }, model: mistralModel },
  tools: { body: asked, model: toolModels.qwen },
  "a tool that has to be called": { body: { ...asked, tool_choice: "required" }, model: toolModels.qwen },
  "an answer by a schema": { body: { ...chat, response_format: format }, model: toolModels.qwen },
  "a call and its result": { body: { ...asked, messages: called, documents }, model: toolModels.qwen },
  "tools in a template without them": { body: { ...asked, tools: [tool()] } },
  "a completion": { body: { ...text, prompt: "the thing in the row" }, path },
  "completions of ids and texts": { body: { ...text, prompt: ["one", "the other"], n: 2, seed: 3 }, path },
  "a completion of ids": { body: { ...text, prompt: [[5, 6, 7, 8]] }, path },
} as const;

describe("plans of chats and completions", () => {
  for (const [name, entry] of Object.entries(generationCases)) {
    test(name, async () => {
      const rig = chatRig("model" in entry ? { model: entry.model } : {});
      const response = await post(rig.app, entry.body, "path" in entry ? { path: entry.path } : {});
      expect([response.status, response.status === 200 ? "" : await response.text()]).toEqual([200, ""]);
      await response.text();
      expectRecorded(`generation: ${name}`, submitsHash(rig.submits()));
    });
  }
});

const said = (role: "user" | "system", content: string) => ({ [role]: content });
const asking = (input: unknown, fields: object = {}) => ({
  g: { model: "", max_tokens: 4, temperature: 0, ...fields, input },
});
const facts = { plus: [{ fragment: { id: "frag_1" } }, { fragment: { text: "Tom is 47.", title: "Ages" } }] };
const found = { retrieve: { vector_store_ids: ["vs_1"], query: "Anna", max_num_results: 2 } };
const one = asking(said("user", "the thing"), { seed: 1 });
const other = asking(said("user", "the other thing"), { seed: 2, temperature: 1 });
const ordered = [said("system", "be brief"), { fragment: { id: "frag_2" } }, one, said("user", "Which?")];

const queryCases: Readonly<Record<string, unknown>> = {
  "messages in an ordered join": asking({ seq: [said("system", "be brief"), said("user", "Why?")] }),
  "a cross of fragments": asking({ cross: [said("system", "be brief"), facts, said("user", "Why?")] }),
  "a par of generates": asking({ par: [one, other, said("user", "Which?")] }),
  "a plus of generates and a judge": asking({ seq: [{ plus: [one, other] }, said("user", "Which?")] }),
  "outputs alone": asking({
    seq: [{ plus: [asking(facts, { expose: "output" }), one] }, said("user", "Which?")],
  }),
  "a preamble": asking({
    seq: [{ plus: { preamble: said("system", "facts:"), children: [facts, one] } }, said("user", "Which?")],
  }),
  "a repeat in a prompt": asking({
    cross: [{ plus: [{ repeat: { n: 3, ...other } }] }, said("user", "Which of the three?")],
  }),
  "a repeat as the root": { repeat: { n: 2, ...other } },
  "a map as the root": { map: { metadata: { model: "", max_tokens: 4, temperature: 0 }, inputs: ["a", "b c"] } },
  "a map in a prompt": asking({
    seq: [
      { map: { metadata: { model: "", max_tokens: 4, temperature: 0 }, inputs: ["a", "b c"] } },
      said("user", "Which?"),
    ],
  }),
  "a chat": { chat: [said("system", "be brief"), said("user", "the thing")] },
  "a zip": asking({ zip: { first: said("system", "be brief"), second: { seq: [facts, said("user", "Why?")] } } }),
  "a monad": asking({ seq: [{ monad: { plus: [facts] } }, said("user", "Why?")] }),
  "a retrieve": asking({ seq: [found, said("user", "Who?")] }),
  "a retrieve whose question is generated": asking({
    seq: [{ retrieve: { ...found.retrieve, query: one } }, said("user", "Who?")],
  }),
  "an augment": asking({
    augment: {
      body: said("user", "Where does Tom live?"),
      doc: ["people.txt", { Text: "Tom lives in Oslo.\n\nAnna." }],
    },
  }),
  "exact reuse in an ordered join": asking({ seq: ordered }),
  "blended reuse in an ordered join": asking({ seq: ordered }, { reuse: "blend", recompute_ratio: 0.25 }),
  "a tree of judges": asking(
    { seq: [{ plus: Array.from({ length: 5 }, (_, index) => said("user", `idea ${index}`)) }, said("user", "Which?")] },
    { reduce: { arity: 2 } },
  ),
  "three deep": asking({
    seq: [{ plus: [asking({ seq: [{ plus: [one, facts] }, said("user", "What of it?")] })] }, said("user", "And?")],
  }),
};

describe("plans of span queries", () => {
  for (const [name, query] of Object.entries(queryCases)) {
    test(name, async () => {
      const rig = await readyRig();
      await ask(rig, query);
      // What is prepared meanwhile depends on which output comes first.
      const submits = rig.submits().filter(({ params }) => params.maxTokens > 0);
      expectRecorded(`query: ${name}`, submitsHash(submits));
    });
  }
});

const inner = g(seq(system("be brief"), plus(fragment("a"), fragment("long")), user("the thing")), { seed: 1 });
const loweredCases: Readonly<Record<string, Generate>> = {
  "outputs behind their prompts": g(
    seq(plus(seq(inner.input, inner), seq(user("x"), g(user("x"))), fragment("c")), user("Which?")),
  ),
  "outputs of a repeat, behind a preamble": g(
    seq(system("a judge"), behind(user("p"), fragment("b")), plus(repeat(3, inner), fragment("c")), user("Which?")),
  ),
  blended: g(seq(fragment("b"), user("then"), inner, fragment("c"), user("Which?")), { reuse: "blend" }),
};
const outputCases: Readonly<Record<string, (node: Generate | Repeat, index: number) => string | undefined>> = {
  known: (_node, index) => `the answer ${index}`,
  unknown: () => undefined,
  "known in part": (node, index) => (node.kind === "repeat" && index > 0 ? undefined : `the answer ${index}`),
};

describe("plans of generates over outputs", () => {
  for (const [name, generate] of Object.entries(loweredCases)) {
    for (const [which, outputs] of Object.entries(outputCases)) {
      test(`${name}: ${which}`, () => {
        const { lowerer, tokenizer } = lowererOf(models.chatml);
        const lowered = lowerer.lower(generate, contextOf(tokenizer, outputs));
        const prepared = lowerer.preparable(lowered);
        const hash = hashOf([
          planText(lowered.plan),
          JSON.stringify([lowered.promptTokens, [...lowered.closeTokenIds], [...lowered.indeterminateRuns]]),
          prepared === undefined ? "" : planText(prepared),
        ]);
        expectRecorded(`outputs: ${name}: ${which}`, hash);
      });
    }
  }
});

test("every recorded plan is of a case", () => {
  expect([...named].sort()).toEqual(Object.keys(hashes).sort());
});
