/**
 * A queue that is full refuses at once: while workers stand still and nothing waits for a timer, on every route that
 * generates, streamed or not, with a status, Retry-After and the caller's standing.
 */
import { describe, expect, test } from "bun:test";
import { RateLimiter } from "../../gateway/tenant/rate-limiter.ts";
import { chatRig, post } from "./chat-rig.ts";

const user = [{ role: "user", content: "who?" }];
const model = "fake-model";
const routes: readonly (readonly [string, object])[] = [
  ["/v1/chat/completions", { model, messages: user, max_tokens: 4 }],
  ["/v1/completions", { model, prompt: "who?", max_tokens: 4 }],
  ["/v1/responses", { model, input: "who?", max_output_tokens: 4 }],
  ["/v1/messages", { model, messages: user, max_tokens: 4 }],
];

/** Turns of the event loop that an answer may take: no clock is asked, so a machine's speed does not matter. */
const maxTurns = 200;

async function atOnce(response: Response | Promise<Response>): Promise<Response> {
  let found: Response | undefined;
  void Promise.resolve(response).then((answer) => {
    found = answer;
  });
  for (let turn = 0; turn < maxTurns; turn++) {
    await new Promise((resolve) => setImmediate(resolve));
    if (found !== undefined) return found;
  }
  throw new Error(`no answer within ${maxTurns} turns`);
}

function fullRig(maxWaiting: number) {
  const limiter = new RateLimiter(10, () => 1_000);
  const limits = { requestsPerMinute: 100, tokensPerMinute: null, concurrency: null };
  const ownersOf = ({ tenantId }: { tenantId: string | undefined }) =>
    tenantId === undefined ? [] : [{ id: tenantId, kind: "tenant" as const, limits }];
  const dispatch = { maxRunningPerWorker: 1, maxWaiting };
  const rig = chatRig({ ticking: false, rateLimits: { limiter, ownersOf }, dispatch });
  const waiting = async (count: number): Promise<void> => {
    while (rig.dispatcher.stats().unplaced < count) await new Promise((resolve) => setImmediate(resolve));
  };
  return { ...rig, waiting };
}

describe.each(routes)("%s", (path, body) => {
  test.each([false, true])("stream: %p", async (stream) => {
    const { app, waiting, submits, dispatcher } = fullRig(4);
    const asked = { ...body, stream };
    const client = new AbortController();
    // One runs, one waits: a quarter of the queue's four places is a tenant's.
    for (let count = 0; count < 2; count++)
      void Promise.resolve(post(app, body, { path, signal: client.signal })).catch(() => undefined);
    await waiting(1);
    const refused = await atOnce(post(app, asked, { path }));
    expect([refused.status, refused.headers.get("retry-after")]).toEqual([429, "2"]);
    expect(refused.headers.get("content-type")).toStartWith("application/json");
    expect(refused.headers.get("x-ratelimit-limit-requests")).toBe("100");
    expect(refused.headers.get("x-ratelimit-remaining-requests")).toBe("97");
    expect(await refused.text()).toContain("too many requests that wait");
    // Another tenant is not refused for it.
    void Promise.resolve(post(app, body, { path, key: "key-b", signal: client.signal })).catch(() => undefined);
    await waiting(2);
    expect(submits()).toHaveLength(1);
    client.abort();
    while (dispatcher.stats().unplaced > 0) await new Promise((resolve) => setImmediate(resolve));
  });

  test("when the whole queue is full: 503", async () => {
    const { app, waiting } = fullRig(1);
    const client = new AbortController();
    for (let count = 0; count < 2; count++)
      void Promise.resolve(post(app, body, { path, signal: client.signal })).catch(() => undefined);
    await waiting(1);
    for (const key of ["key-a", "key-b"]) {
      const refused = await atOnce(post(app, body, { path, key }));
      expect([refused.status, refused.headers.get("retry-after")]).toEqual([503, "2"]);
      expect(await refused.text()).toContain("overloaded");
    }
    client.abort();
  });
});
