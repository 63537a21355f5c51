import { describe, expect, test } from "bun:test";
import type { TenantId } from "../../db/ids.ts";
import { ApiError } from "../../gateway/base/errors.ts";
import { Placement } from "../../gateway/dispatch/request/placement.ts";
import type { GenerationEvent } from "../../gateway/dispatch/request/request.ts";
import type { PlanRun } from "../../worker/contract/messages.ts";
import { type FakeProcess, fakeLinks } from "./fake-link.ts";
import { greedy, makeRig, plan, request, spanRun } from "./rig.ts";

const at = (processes: readonly FakeProcess[], index: number): FakeProcess => {
  const process = processes[index];
  if (process === undefined) throw new Error(`no process ${index}`);
  return process;
};

function started(devices: readonly string[] = ["cpu"], options = {}) {
  const links = fakeLinks();
  const rig = makeRig(links.openLink, devices, options);
  rig.supervisor.start(rig.dispatcher);
  return { ...rig, processes: links.processes };
}

async function collect(events: AsyncIterable<GenerationEvent>): Promise<{ tokens: number[]; end: string }> {
  const tokens: number[] = [];
  try {
    for await (const event of events) {
      if (event.type === "tokens") tokens.push(...event.tokenIds);
      else if (event.type === "finished") return { tokens, end: event.reason };
    }
    return { tokens, end: "nothing" };
  } catch (error) {
    return { tokens, end: error instanceof ApiError ? error.code : String(error) };
  }
}

const restarted = async (processes: readonly FakeProcess[], count: number): Promise<void> => {
  while (processes.length < count) await Bun.sleep(1);
};

describe("a request", () => {
  test("streams its tokens and ends with the worker's report", async () => {
    const { dispatcher, processes } = started();
    at(processes, 0).ready();
    const result = collect(dispatcher.submit(request("a")));
    for (let tick = 0; tick < 3; tick++) at(processes, 0).core.tick();
    expect(await result).toEqual({ tokens: [7, 8, 9], end: "length" });
    expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
  });

  test("waits for a worker that is still starting", async () => {
    const { dispatcher, processes } = started();
    const result = collect(dispatcher.submit(request("a")));
    expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 1 });
    at(processes, 0).ready();
    for (let tick = 0; tick < 3; tick++) at(processes, 0).core.tick();
    expect((await result).end).toBe("length");
  });

  test("that waits for a worker ends when the last one has failed for good", async () => {
    const { dispatcher, processes } = started();
    at(processes, 0).ready();
    at(processes, 0).die();
    const result = collect(dispatcher.submit(request("a")));
    await restarted(processes, 2);
    expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 1 });
    at(processes, 1).handlers.onMessage({ type: "fatal", message: "config.json: no such file" });
    expect(await result).toEqual({ tokens: [], end: "not_ready" });
    expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
  });

  test("is sent again without a word when its worker dies before the first token", async () => {
    const { dispatcher, processes } = started();
    at(processes, 0).ready();
    const result = collect(dispatcher.submit(request("a")));
    at(processes, 0).die();
    await restarted(processes, 2);
    at(processes, 1).ready();
    for (let tick = 0; tick < 3; tick++) at(processes, 1).core.tick();
    expect(await result).toEqual({ tokens: [7, 8, 9], end: "length" });
  });

  test("ends with worker_lost when its worker dies after the first token", async () => {
    const { dispatcher, processes, registry } = started();
    at(processes, 0).ready();
    const result = collect(dispatcher.submit(request("a")));
    at(processes, 0).core.tick();
    at(processes, 0).die();
    expect(await result).toEqual({ tokens: [7], end: "worker_lost" });
    expect(registry.list()[0]).toMatchObject({ state: "restarting", inFlight: 0, pendingTokens: 0 });
  });

  test("whose tokens nobody has seen begins again, and says so", async () => {
    const { dispatcher, processes } = started();
    at(processes, 0).ready();
    const seen: string[] = [];
    const reading = (async () => {
      for await (const event of dispatcher.submit(request("a", { restartable: true }))) {
        seen.push(event.type === "tokens" ? event.tokenIds.join() : event.type);
      }
    })();
    at(processes, 0).core.tick();
    at(processes, 0).core.tick();
    at(processes, 0).die();
    await restarted(processes, 2);
    at(processes, 1).ready();
    for (let tick = 0; tick < 3; tick++) at(processes, 1).core.tick();
    await reading;
    expect(seen).toEqual(["7", "8", "restarted", "7", "8", "9", "finished"]);
  });

  test("is not tried more often than allowed", async () => {
    const { dispatcher, processes } = started();
    const result = collect(dispatcher.submit(request("a")));
    for (let life = 0; life < 3; life++) {
      await restarted(processes, life + 1);
      at(processes, life).ready();
      at(processes, life).die();
    }
    expect((await result).end).toBe("worker_lost");
  });

  test("goes to the other worker at once when there is one", async () => {
    const { dispatcher, processes } = started(["cpu", "cpu"]);
    at(processes, 0).ready();
    const result = collect(dispatcher.submit(request("a")));
    at(processes, 1).ready();
    at(processes, 0).die();
    for (let tick = 0; tick < 3; tick++) at(processes, 1).core.tick();
    expect((await result).end).toBe("length");
  });

  test("ends at its deadline, and the worker is told", async () => {
    const { dispatcher, processes } = started();
    at(processes, 0).ready();
    const result = await collect(dispatcher.submit(request("a", { deadlineMs: 2 })));
    expect(result.end).toBe("deadline_exceeded");
    expect(at(processes, 0).core.received.at(-1)).toEqual({ type: "abort", requestId: "a.1" });
  });

  test("an abort reaches the worker and its report still comes", async () => {
    const { dispatcher, processes } = started();
    at(processes, 0).ready();
    const controller = new AbortController();
    const result = collect(dispatcher.submit(request("a", { signal: controller.signal })));
    at(processes, 0).core.tick();
    controller.abort();
    expect(await result).toEqual({ tokens: [7], end: "abort" });
    expect(at(processes, 0).core.runningCount).toBe(0);
  });

  test("a consumer that leaves the loop aborts the request", async () => {
    const { dispatcher, processes } = started();
    at(processes, 0).ready();
    const events = dispatcher.submit(request("a", { params: greedy(100) }));
    at(processes, 0).core.tick();
    for await (const event of events) {
      expect(event.type).toBe("tokens");
      break;
    }
    expect(at(processes, 0).core.runningCount).toBe(0);
    expect(dispatcher.stats().running).toBe(0);
  });

  test("aborted before a worker was ready ends without one", async () => {
    const { dispatcher } = started();
    const controller = new AbortController();
    const result = collect(dispatcher.submit(request("a", { signal: controller.signal })));
    controller.abort();
    expect((await result).end).toBe("abort");
    expect(dispatcher.stats().unplaced).toBe(0);
  });
});

describe("limits", () => {
  const refusalOf = (submit: () => unknown): unknown => {
    try {
      return submit();
    } catch (error) {
      return error;
    }
  };

  test("a tenant with a quarter of the queue is refused with Retry-After, others are not until it is full", () => {
    const { dispatcher, processes } = started(["cpu"], { maxRunningPerWorker: 1, maxWaiting: 8 });
    at(processes, 0).ready();
    const submit = (id: string, tenantId: TenantId) => refusalOf(() => dispatcher.submit(request(id, { tenantId })));
    for (const id of ["a", "b", "c"]) submit(id, "tenant_a");
    expect(dispatcher.stats()).toEqual({ running: 1, unplaced: 2 });
    expect(submit("d", "tenant_a")).toMatchObject({ code: "concurrency_limited", status: 429, retryAfterS: 2 });
    for (const tenantId of ["tenant_b", "tenant_c", "tenant_d"] as const) {
      for (const id of ["x", "y"]) expect(submit(`${tenantId}-${id}`, tenantId)).not.toBeInstanceOf(Error);
    }
    expect(submit("e", "tenant_e")).toMatchObject({ code: "overloaded", status: 503, retryAfterS: 2 });
    expect(dispatcher.stats()).toEqual({ running: 1, unplaced: 8 });
  });

  test("the tokens that wait are bounded too, but for a single request", () => {
    const { dispatcher, processes } = started(["cpu"], { maxRunningPerWorker: 1, maxWaitingTokens: 8 });
    at(processes, 0).ready();
    const large = { plan: plan(Array.from({ length: 20 }, () => 7)) };
    dispatcher.submit(request("a", large));
    dispatcher.submit(request("b", large));
    expect(refusalOf(() => dispatcher.submit(request("c")))).toMatchObject({ code: "overloaded" });
  });

  test("few wait for a worker to start", () => {
    const { dispatcher } = started(["cpu"], { maxWaiting: 1 });
    dispatcher.submit(request("a"));
    expect(() => dispatcher.submit(request("b"))).toThrow(ApiError);
  });

  test("draining takes nothing new and ends what does not finish", async () => {
    const { dispatcher, processes } = started();
    at(processes, 0).ready();
    const result = collect(dispatcher.submit(request("a", { params: greedy(100) })));
    await dispatcher.drain(1);
    expect((await result).end).toBe("server_shutdown");
    expect(() => dispatcher.submit(request("b"))).toThrow("shutting down");
  });
});

describe("routing", () => {
  test("a request goes where its spans are", async () => {
    const { dispatcher, processes, residency } = started(["cpu", "cpu"]);
    for (const process of processes) process.ready();
    const span = spanRun("fragment", 40);
    const prepared = collect(dispatcher.submit(request("p", { plan: plan([1], [span]), params: greedy(0) })));
    const home = processes.findIndex((process) => process.core.runningCount === 1);
    at(processes, home).core.tick();
    expect((await prepared).end).toBe("prepared");
    expect(residency.holders(span.blockKeys.at(-1) ?? span.rootKey)).toEqual([`worker-${home}`]);
    for (let count = 0; count < 3; count++) dispatcher.submit(request(`q${count}`, { plan: plan([1], [span]) }));
    expect(at(processes, home).core.runningCount).toBe(3 - at(processes, 1 - home).core.runningCount);
    expect(at(processes, home).submits.length).toBeGreaterThan(1);
  });

  async function prepareOn(rig: ReturnType<typeof started>, index: number, span: PlanRun): Promise<void> {
    const placement = new Placement(`worker-${index}`);
    const fields = { plan: { runs: [span] }, params: greedy(0), placement };
    const prepared = collect(rig.dispatcher.submit(request(`p-${span.spanId}`, fields)));
    at(rig.processes, index).core.tick();
    expect((await prepared).end).toBe("prepared");
  }

  test("a request over fragments of two workers goes where most of its tokens are", async () => {
    const rig = started(["cpu", "cpu"]);
    for (const process of rig.processes) process.ready();
    const [small, large] = [spanRun("small", 40), spanRun("large", 200)];
    await prepareOn(rig, 0, small);
    await prepareOn(rig, 1, large);
    rig.dispatcher.submit(request("q", { plan: plan([1], [small, large]) }));
    expect(at(rig.processes, 1).submittedIds).toContain("q.1");
  });

  test("never a full worker while another has room, whatever it holds", async () => {
    const rig = started(["cpu", "cpu"], { maxRunningPerWorker: 2 });
    for (const process of rig.processes) process.ready();
    const span = spanRun("fragment", 1_000);
    await prepareOn(rig, 0, span);
    for (const id of ["a", "b", "c", "d"]) rig.dispatcher.submit(request(id, { plan: plan([1], [span]) }));
    expect(rig.processes.map(({ submittedIds }) => submittedIds)).toEqual([
      ["p-fragment.1", "a.1", "b.1"],
      ["c.1", "d.1"],
    ]);
    rig.dispatcher.submit(request("e"));
    expect(rig.dispatcher.stats()).toEqual({ running: 4, unplaced: 1 });
  });

  test("uses of fragments are counted where they are asked about, not where they are prepared", () => {
    const { dispatcher, processes, uses } = started();
    at(processes, 0).ready();
    const span = spanRun("fragment", 40);
    const spanKey = span.blockKeys.at(-1) ?? span.rootKey;
    dispatcher.submit(request("p", { plan: plan([1], [span]), params: greedy(0) }));
    expect(uses.of(spanKey)).toBe(0);
    for (const id of ["a", "b"]) dispatcher.submit(request(id, { plan: plan([1], [span]) }));
    expect(uses.of(spanKey)).toBeGreaterThan(1.9);
  });

  test("an evicted or lost block is no reason to go there", async () => {
    const { dispatcher, processes, residency } = started();
    at(processes, 0).ready();
    const span = spanRun("fragment", 40);
    const prepared = collect(dispatcher.submit(request("p", { plan: plan([1], [span]), params: greedy(0) })));
    at(processes, 0).core.tick();
    await prepared;
    const tokensHeld = () => residency.cachedTokens("worker-0", [span], 16);
    expect(tokensHeld()).toBe(40);
    dispatcher.evictions.evict(span.blockKeys.slice(-1), span.rootKey);
    expect(tokensHeld()).toBe(32);
    at(processes, 0).die();
    expect(tokensHeld()).toBe(0);
  });
});
