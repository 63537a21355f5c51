/** What clients send back of earlier responses by its id, and the format that they ask for. */
import { expect, test } from "bun:test";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";

const question = { model: "fake-model", max_output_tokens: 4, input: "the thing" };
const path = "/v1/responses";

interface ResponseAnswer {
  readonly id: string;
  readonly output: readonly { readonly id: string; readonly content?: readonly { readonly text: string }[] }[];
}
const send = async (app: ChatRig["app"], body: object): Promise<ResponseAnswer> => {
  const response = await post(app, body, { path });
  expect(response.status).toBe(200);
  return (await response.json()) as ResponseAnswer;
};

test("items of kept ones are referred to by their ids, by their own tenant", async () => {
  const { app, submits } = chatRig();
  const first = await send(app, question);
  const [answer] = first.output.slice(-1);
  const more = { role: "user", content: "more" };
  const input = [{ role: "user", content: "the thing" }, { type: "item_reference", id: answer?.id }, more];
  await send(app, { ...question, input });
  const said = answer?.content?.[0]?.text ?? "";
  await send(app, {
    ...question,
    input: [{ role: "user", content: "the thing" }, { role: "assistant", content: said }, more],
  });
  const [, referred, whole] = submits();
  expect(referred?.plan.runs[0]?.blockKeys).toEqual(whole?.plan.runs[0]?.blockKeys ?? []);
  const theirs = await post(app, { ...question, input }, { path, key: "key-b" });
  expect(theirs.status).toBe(404);
  expect(await theirs.json()).toMatchObject({ error: { code: "not_found", param: "input[1].id" } });
});

test("a format is a grammar for the worker, and told as it was asked for", async () => {
  const { app, submits } = chatRig();
  const format = { type: "json_schema", name: "answer", schema: { enum: ["yes", "no"] }, strict: true };
  const answer = (await send(app, { ...question, text: { format } })) as unknown as { text: object };
  expect(answer.text).toEqual({ format });
  await send(app, { ...question, text: { format: { type: "json_object" } }, reasoning: {} });
  await send(app, { ...question, text: { format: { type: "text" } } });
  expect(submits().map(({ params }) => params.grammar !== undefined)).toEqual([true, true, false]);
});

test("two documents of one id are refused: a report by id would tell of both as one", async () => {
  const { app, submits } = chatRig();
  const documents = [{ id: "a", text: "in the row" }, { text: "of the two" }, { id: "a", text: "another" }];
  const refused = await post(app, { ...question, documents }, { path });
  expect(refused.status).toBe(400);
  expect(await refused.json()).toMatchObject({ error: { code: "invalid_value", param: "documents[2].id" } });
  expect(submits()).toEqual([]);
});

test("store: false leaves nothing", async () => {
  const { app } = chatRig();
  const { id } = await send(app, { ...question, store: false });
  const headers = { authorization: "Bearer key-a" };
  expect((await app.request(`${path}/${id}`, { headers })).status).toBe(404);
});

interface Found {
  readonly output: readonly { readonly results?: readonly { readonly text?: string }[] }[];
}

test("a line of a batch tells what was found without its text, which its file would keep", async () => {
  const { app } = chatRig();
  const body = {
    ...question,
    tools: [{ type: "file_search", vector_store_ids: ["vs_1"] }],
    include: ["file_search_call.results"],
  };
  const principal = { keyId: "k1", tenantId: "tenant_a", scopes: new Set(["inference" as const]) };
  const headers = { "content-type": "application/json" };
  const request = new Request(`http://batch${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  const line = (await (await app.fetch(request, { batch: { principal, requestId: "req_1" } })).json()) as Found;
  const { output } = (await send(app, body)) as unknown as Found;
  const results = output[0]?.results ?? [];
  expect(results.every(({ text }) => typeof text === "string")).toBe(true);
  expect(line.output[0]?.results).toEqual(results.map(({ text: _, ...rest }) => rest));
  expect(results.length).toBeGreaterThan(0);
});
