/** POST /v1/responses/input_tokens: as many tokens as the response's prompt then has, and what is refused by name. */
import { expect, test } from "bun:test";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";

const question = { model: "fake-model", input: "the thing" };
const ask = async (app: ChatRig["app"], path: string, body: object, key = "key-a") => {
  const response = await post(app, body, { path, key });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
};
const count = (app: ChatRig["app"], body: object, key?: string) => ask(app, "/v1/responses/input_tokens", body, key);

interface Created {
  readonly id: string;
  readonly usage: { readonly input_tokens: number };
}

test("what is counted is what the response's usage tells", async () => {
  const { app, submits } = chatRig();
  const create = async (body: object): Promise<Created> => {
    const answer = await ask(app, "/v1/responses", { ...body, max_output_tokens: 2 });
    expect(answer.status).toBe(200);
    return answer.body as unknown as Created;
  };
  const { id } = await create(question);
  const search = { type: "file_search", vector_store_ids: ["vs_1"] };
  const lookUp = { type: "function", name: "look_up", parameters: { type: "object", properties: {} } };
  const bodies: readonly object[] = [
    question,
    { ...question, instructions: "Be short.", documents: [{ text: "in the row" }], truncation: "disabled" },
    { ...question, input: [{ role: "user", content: "more" }], previous_response_id: id },
    { ...question, tools: [search] },
    { ...question, tools: [lookUp], tool_choice: "auto", text: { verbosity: "medium" }, reasoning: { effort: "none" } },
  ];
  for (const body of bodies) {
    const sent = submits().length;
    const counted = await count(app, body);
    expect(submits()).toHaveLength(sent);
    const { usage } = await create(body);
    expect([body, counted]).toEqual([
      body,
      { status: 200, body: { object: "response.input_tokens", input_tokens: usage.input_tokens } },
    ]);
  }
});

test("what is wrong is named, and another tenant's response is none", async () => {
  const { app } = chatRig();
  const { id } = (await ask(app, "/v1/responses", question)).body as unknown as Created;
  const cases: readonly (readonly [fields: object, status: number, code: string, param: string])[] = [
    [{ input: undefined }, 400, "invalid_value", "input"],
    [{ conversation: "conv_1" }, 400, "unsupported_field", "conversation"],
    [{ personality: "friendly" }, 400, "unsupported_field", "personality"],
    [{ truncation: "auto" }, 400, "invalid_value", "truncation"],
    [{ model: "nobody" }, 404, "model_not_found", "model"],
    [{ tools: [{ type: "file_search", vector_store_ids: ["vs_2"] }] }, 404, "not_found", "tools[0].vector_store_ids"],
    [{ previous_response_id: "resp_1" }, 404, "not_found", "previous_response_id"],
  ];
  for (const [fields, status, code, param] of cases) {
    const answer = await count(app, { ...question, ...fields });
    expect([fields, answer]).toMatchObject([fields, { status, body: { error: { code, param } } }]);
  }
  const theirs = await count(app, { ...question, previous_response_id: id }, "key-b");
  expect(theirs).toMatchObject({ status: 404, body: { error: { param: "previous_response_id" } } });
});
