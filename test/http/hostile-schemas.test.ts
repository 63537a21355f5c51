/** Schemas that take long to compile: in which API ever, another tenant is answered meanwhile. */
import { describe, expect, test } from "bun:test";
import { largestGrammar } from "../../gateway/grammar/budget.ts";
import { answerGrammar } from "../../gateway/tools/answer-grammar.ts";
import type { AnswerRules } from "../../gateway/tools/answer-rules.ts";
import type { CompileElsewhere } from "../../gateway/tools/grammars.ts";
import { chatRig, post, question } from "./chat-rig.ts";

const letters = (count: number, from = 0x4e00, step = 1): string =>
  Array.from({ length: count }, (_, i) => String.fromCodePoint(from + step * i)).join("");
const model = "fake-model";
const messages = [{ role: "user", content: "the thing" }];
const named = { type: "json_schema", name: "x" };
const pattern = (text: string) => ({ type: "object", properties: { x: { type: "string", pattern: text } } });
const tool = (schema: object) => [{ type: "function", function: { name: "f", strict: true, parameters: schema } }];

const apis: readonly (readonly [string, string, (schema: object) => object, string])[] = [
  [
    "chat",
    "/v1/chat/completions",
    (schema) => ({ ...question, response_format: { type: "json_schema", json_schema: { name: "x", schema } } }),
    "response_format.json_schema.schema",
  ],
  ["tools", "/v1/chat/completions", (schema) => ({ ...question, tools: tool(schema) }), "tools[0].function.parameters"],
  [
    "responses",
    "/v1/responses",
    (schema) => ({ model, input: "the thing", text: { format: { ...named, schema } } }),
    "text.format.schema",
  ],
  [
    "messages",
    "/v1/messages",
    (schema) => ({ model, messages, max_tokens: 4, output_config: { format: { type: "json_schema", schema } } }),
    "output_config.format.schema",
  ],
];

/** Threads that answer when the test says so. */
function heldRig() {
  const asked: (() => void)[] = [];
  const compileElsewhere: CompileElsewhere = async (_tenantId, text, signal) => {
    const { promise, resolve, reject } = Promise.withResolvers<ReturnType<typeof answerGrammar>>();
    signal.addEventListener("abort", () => reject(signal.reason));
    asked.push(() => resolve(answerGrammar(JSON.parse(text) as AnswerRules, largestGrammar)));
    return await promise;
  };
  return { asked, ...chatRig({ compileElsewhere }) };
}

const turns = async (isDone: () => boolean): Promise<void> => {
  for (let turn = 0; turn < 1_000 && !isDone(); turn++) await new Promise((resolve) => setImmediate(resolve));
};

describe.each(apis)("%s", (_name, path, bodyOf, param) => {
  test("another tenant is answered while a thread compiles", async () => {
    const { app, asked, submits } = heldRig();
    const answer = Promise.resolve(post(app, bodyOf(pattern("^a{900}$")), { path }));
    await turns(() => asked.length > 0);
    expect(asked).toHaveLength(1);
    const other = await app.request("/v1/models", { headers: { authorization: "Bearer key-b" } });
    expect(other.status).toBe(200);
    expect([Bun.peek.status(answer), submits().length]).toEqual(["pending", 0]);
    asked[0]?.();
    expect((await answer).status).toBe(200);
    expect(submits()[0]?.params.grammar?.id).toMatch(/^[\w-]{43}$/);
  });

  test("it ends when its caller goes, and is no failure", async () => {
    const { app, asked, submits } = heldRig();
    const client = new AbortController();
    const answer = Promise.resolve(post(app, bodyOf(pattern("^a{900}$")), { path, signal: client.signal }));
    await turns(() => asked.length > 0);
    client.abort();
    expect(await (await answer).text()).toBe("");
    expect(submits()).toHaveLength(0);
  });

  test("what is too much is refused by its path", async () => {
    const { app, submits } = chatRig();
    const properties = Object.fromEntries(
      Array.from({ length: 20 }, (_, i) => [
        `p${i}`,
        { type: "string", pattern: `^[${letters(1_000, 0x4e00 + i, 2)}]` },
      ]),
    );
    const refused = await post(app, bodyOf({ type: "object", properties: { ...properties, q: pattern("(?=a)") } }), {
      path,
    });
    const { error } = (await refused.json()) as { error: { message: string; param?: string } };
    expect([refused.status, error.message]).toEqual([400, expect.stringContaining(`${param}.properties.q`)]);
    expect(submits()).toHaveLength(0);
  });

  test("a body of 8 MiB is refused before anything is compiled", async () => {
    const { app, asked } = heldRig();
    const refused = await post(app, bodyOf(pattern(`^[${"a".repeat(8_000_000)}]{1000}$`)), { path });
    expect([refused.status, await refused.text()]).toEqual([400, expect.stringContaining(`'${param}'`)]);
    expect(asked).toHaveLength(0);
  });
});

test("tokens are counted without compiling anything", async () => {
  const { app, asked } = heldRig();
  const tools = tool(pattern("^a{900}$"));
  const counted: readonly (readonly [string, object])[] = [
    ["/tokenize", { model, messages, tools }],
    [
      "/v1/messages/count_tokens",
      { model, messages, tools: [{ name: "f", strict: true, input_schema: pattern("^a{900}$") }] },
    ],
    ["/v1/responses/input_tokens", { model, input: "the thing", tools: [{ type: "function", ...tools[0]?.function }] }],
  ];
  for (const [path, body] of counted) expect([path, (await post(app, body, { path })).status]).toEqual([path, 200]);
  expect(asked).toHaveLength(0);
});
