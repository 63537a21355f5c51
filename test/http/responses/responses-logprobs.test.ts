/** Probabilities of an answer's tokens in responses: as chat tells them, whole and streamed, and taken back in a next turn. */
import { expect, test } from "bun:test";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";

const include = ["message.output_text.logprobs"];
const question = { model: "fake-model", input: "the thing", max_output_tokens: 4, seed: 1 };
const asked = { ...question, include, top_logprobs: 2 };

interface Logprob {
  readonly token: string;
  readonly logprob: number;
  readonly top_logprobs: readonly object[];
}
interface Part {
  readonly text: string;
  readonly logprobs: readonly Logprob[];
}
interface Answer {
  readonly id: string;
  readonly top_logprobs: number;
  readonly output: readonly { readonly content: readonly Part[] }[];
}
const create = async (app: ChatRig["app"], body: object): Promise<Answer> => {
  const response = await post(app, body, { path: "/v1/responses" });
  expect(response.status).toBe(200);
  return (await response.json()) as Answer;
};
const partOf = ({ output }: Answer): Part => output[0]?.content[0] as Part;

test("are those of chat, a token each, and only where they are asked for", async () => {
  const { app } = chatRig();
  const answer = await create(app, asked);
  expect(answer.top_logprobs).toBe(2);
  const messages = [{ role: "user", content: "the thing" }];
  const body = { model: "fake-model", messages, max_tokens: 4, seed: 1, logprobs: true, top_logprobs: 2 };
  const chat = await (await post(app, body)).json();
  const { choices } = chat as { choices: readonly { logprobs: { content: readonly Logprob[] } }[] };
  expect(partOf(answer).logprobs).toHaveLength(4);
  expect(partOf(answer).logprobs).toEqual(choices[0]?.logprobs.content as Logprob[]);
  expect(partOf(await create(app, question)).logprobs).toEqual([]);
  expect(partOf(await create(app, { ...question, include })).logprobs.map((each) => each.top_logprobs)).toEqual([
    [],
    [],
    [],
    [],
  ]);
});

test("a stream tells them with their text, and all at its end", async () => {
  const { app } = chatRig();
  const whole = partOf(await create(app, asked));
  const response = await post(app, { ...asked, stream: true }, { path: "/v1/responses" });
  const events = [...(await response.text()).matchAll(/^data: (.*)$/gm)].map(
    ([, data]) => JSON.parse(data ?? "") as { type: string; logprobs: readonly Logprob[]; part: Part },
  );
  const deltas = events.filter(({ type }) => type === "response.output_text.delta");
  expect(deltas.flatMap(({ logprobs }) => logprobs)).toEqual([...whole.logprobs]);
  expect(events.find(({ type }) => type === "response.output_text.done")?.logprobs).toEqual(whole.logprobs);
  expect(events.find(({ type }) => type === "response.content_part.done")?.part).toEqual(whole);
});

test("are not kept, and are taken back with the message that they came with", async () => {
  const { app } = chatRig();
  const answer = await create(app, asked);
  const kept = await app.request(`/v1/responses/${answer.id}`, { headers: { authorization: "Bearer key-a" } });
  expect(partOf((await kept.json()) as Answer)).toMatchObject({ text: partOf(answer).text, logprobs: [] });
  const first = { role: "user", content: "the thing" };
  await create(app, { ...question, input: [first, ...answer.output, { role: "user", content: "more" }] });
});

test("top_logprobs without them, too many of them, and other things to include are refused by name", async () => {
  const { app } = chatRig();
  const cases: readonly (readonly [fields: object, param: string])[] = [
    [{ include: undefined }, "top_logprobs"],
    [{ top_logprobs: 21 }, "top_logprobs"],
    [{ top_logprobs: -1 }, "top_logprobs"],
    [{ include: [...include, "reasoning.encrypted_content"] }, "include[1]"],
  ];
  for (const [fields, param] of cases) {
    const response = await post(app, { ...asked, ...fields }, { path: "/v1/responses" });
    expect([fields, response.status, await response.json()]).toMatchObject([fields, 400, { error: { param } }]);
  }
});
