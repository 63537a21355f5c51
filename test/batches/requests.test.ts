/** One line's request, and what becomes of it when the batch is interrupted while it runs. */
import { expect, test } from "bun:test";
import { newId } from "../../db/ids.ts";
import { sendLine } from "../../gateway/batches/requests.ts";

const line = { customId: "a", body: "{}" };
const principal = { keyId: "key", tenantId: "tenant_a", scopes: new Set(["inference"] as const) };
const jobUntil = (signal: AbortSignal) =>
  ({ line, endpoint: "/v1/chat/completions", principal, resultId: newId("batchRequest"), signal }) as never;

test("a line that is aborted while it runs has no result, though it is answered with nothing", async () => {
  const ending = new AbortController();
  const answered = sendLine(async () => {
    ending.abort();
    return new Response(null);
  }, jobUntil(ending.signal));
  expect(await answered).toBeUndefined();
});

test("a line that runs to its end has the answer as its result", async () => {
  const send = async () => Response.json({ usage: { prompt_tokens: 3, completion_tokens: 2 } });
  const answered = await sendLine(send, jobUntil(new AbortController().signal));
  expect(answered).toMatchObject({ kind: "answered", result: { isError: false, inputTokens: 3, outputTokens: 2 } });
});
