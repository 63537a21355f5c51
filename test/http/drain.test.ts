/** A server that shuts down: what is open when its time is over ends with an error of its API, and is not cut. */
import { expect, test } from "bun:test";
import { chatRig, post } from "./chat-rig.ts";

const user = [{ role: "user", content: "who?" }];
const model = "fake-model";
/** Route, body, and what a failed stream of it has and has not. */
const routes: readonly (readonly [path: string, body: object, has: string, hasNot: string])[] = [
  ["/v1/chat/completions", { model, messages: user, max_tokens: 9 }, '"code":"server_shutdown"', "[DONE]"],
  ["/v1/completions", { model, prompt: "who?", max_tokens: 9 }, '"code":"server_shutdown"', "[DONE]"],
  ["/v1/responses", { model, input: "who?", max_output_tokens: 9 }, '"code":"server_shutdown"', "response.completed"],
  ["/v1/messages", { model, messages: user, max_tokens: 9 }, '"type":"error"', "message_stop"],
];

test.each(routes)("%s: a stream ends with the error", async (path, body, has, hasNot) => {
  const { app, processes, dispatcher, submits } = chatRig({ ticking: false });
  const response = post(app, { ...body, stream: true }, { path });
  while (submits().length === 0) await new Promise((resolve) => setImmediate(resolve));
  // Until there is a text to stream.
  for (let tick = 0; tick < 6; tick++) processes[0]?.core.tick();
  const stream = (await response).text();
  await dispatcher.drain(0);
  const text = await stream;
  expect(text).toContain(has);
  expect(text).toContain("The server is shutting down.");
  expect(text).not.toContain(hasNot);
});

test.each(routes)("%s: an answer that was to be whole is a 503 that may be tried again", async (path, body) => {
  const { app, dispatcher, submits } = chatRig({ ticking: false });
  const response = post(app, body, { path });
  while (submits().length === 0) await new Promise((resolve) => setImmediate(resolve));
  await dispatcher.drain(0);
  const { status, headers } = await response;
  expect([status, headers.get("retry-after")]).toEqual([503, "1"]);
  const later = await post(app, body, { path });
  expect([later.status, later.headers.get("retry-after")]).toEqual([503, "1"]);
});
