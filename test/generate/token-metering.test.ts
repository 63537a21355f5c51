import { describe, expect, test } from "bun:test";
import { paced } from "../../gateway/execute/bulk/bulk.ts";
import { metered } from "../../gateway/generate/token-metering.ts";
import { type LimitedOwner, RateLimiter } from "../../gateway/tenant/rate-limiter.ts";
import { greedy, readyRig, request } from "../dispatch/rig.ts";

const owner: LimitedOwner = {
  id: "tenant_a",
  kind: "tenant",
  limits: { requestsPerMinute: null, tokensPerMinute: 1_000, concurrency: null },
};

function started(options = {}) {
  const rig = readyRig(1, options);
  const limiter = new RateLimiter(10, () => 1_000);
  limiter.admit("req_a", [owner]);
  const remaining = () => limiter.standing([owner], "tokens")?.remaining;
  return { ...rig, limiter, remaining, dispatcher: metered(rig.dispatcher, limiter) };
}

describe("tokens of work that is sent to workers", () => {
  // The prompt has 3 tokens.
  const work = (id = "req_a.0") => request(id, { params: greedy(100) });

  test("are reserved, and given back when the dispatcher refuses it", () => {
    const { dispatcher, remaining } = started({ maxRunningPerWorker: 1, maxWaiting: 1 });
    dispatcher.submit(work());
    expect(remaining()).toBe(897);
    dispatcher.submit(work());
    expect(remaining()).toBe(794);
    expect(() => dispatcher.submit(work())).toThrow("overloaded");
    expect(remaining()).toBe(794);
  });

  test("cost nothing when the worker was lost before the first of them, and what there was after it", async () => {
    const { dispatcher, processes, remaining } = started({ maxAttempts: 1 });
    const lost = dispatcher.submit(work()).next();
    processes[0]?.die();
    await expect(lost).rejects.toMatchObject({ code: "worker_lost" });
    expect(remaining()).toBe(1_000);
    while (processes.length < 2) await Bun.sleep(1);
    processes[1]?.ready();
    const events = dispatcher.submit(work());
    processes[1]?.core.tick();
    await events.next();
    const cut = events.next();
    processes[1]?.die();
    await expect(cut).rejects.toMatchObject({ code: "worker_lost" });
    expect(remaining()).toBe(1_000 - 3 - 1);
  });

  test("of requests that nobody admitted are not counted", () => {
    const { dispatcher, remaining } = started();
    dispatcher.submit(work("prepare.0"));
    expect(remaining()).toBe(1_000);
  });
});

test("a query of a bulk request waits until its tenant has tokens again", async () => {
  const { limiter } = started();
  limiter.admissionOf("req_a")?.reserve(1_000);
  const runs: string[] = [];
  const answer = {
    response: {},
    usage: { promptTokens: 0, completionTokens: 0, cachedTokens: 0, cacheWriteTokens: 0 },
  };
  const runner = paced(
    {
      fragments: () => Promise.resolve([]),
      run: (_query, requestId) => {
        runs.push(requestId);
        return Promise.resolve(answer);
      },
    },
    limiter,
  );
  const query = { kind: "seq", children: [] } as const;
  const client = new AbortController();
  const waiting = runner.run(query, "req_a.0", client.signal);
  await runner.run(query, "req_other.0", client.signal);
  expect(runs).toEqual(["req_other.0"]);
  client.abort();
  await waiting;
});
