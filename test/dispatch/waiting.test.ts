import { describe, expect, test } from "bun:test";
import type { TenantId } from "../../db/ids.ts";
import { greedy, plan, readyRig, request } from "./rig.ts";

function started(options = {}) {
  const rig = readyRig(1, options);
  const submit = (id: string, tenantId: TenantId, changes = {}) =>
    rig.dispatcher.submit(request(id, { tenantId, params: greedy(1), ...changes }));
  return { ...rig, submit, sent: () => rig.process.submittedIds };
}

describe("what waits for a worker", () => {
  test("is sent when another has ended, tenants in turn, each in its own order", () => {
    const { submit, process, sent, dispatcher } = started({ maxRunningPerWorker: 1 });
    for (const id of ["a1", "a2", "a3"]) submit(id, "tenant_a");
    for (const id of ["b1", "b2"]) submit(id, "tenant_b");
    expect(sent()).toEqual(["a1.1"]);
    for (let tick = 0; tick < 5; tick++) process.core.tick();
    expect(sent()).toEqual(["a1.1", "a2.1", "b1.1", "a3.1", "b2.1"]);
    expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
  });

  test("is sent when what ran is aborted, and is not sent when it is aborted itself", () => {
    const { submit, sent, dispatcher } = started({ maxRunningPerWorker: 1 });
    const running = new AbortController();
    const waiting = new AbortController();
    submit("a", "tenant_a", { signal: running.signal });
    submit("b", "tenant_a", { signal: waiting.signal });
    submit("c", "tenant_a");
    waiting.abort();
    expect(dispatcher.stats()).toEqual({ running: 1, unplaced: 1 });
    running.abort();
    expect(sent()).toEqual(["a.1", "c.1"]);
  });

  test("ends at its deadline", async () => {
    const { submit, dispatcher } = started({ maxRunningPerWorker: 1 });
    submit("a", "tenant_a");
    await expect(submit("b", "tenant_a", { deadlineMs: 1 }).next()).rejects.toMatchObject({
      code: "deadline_exceeded",
    });
    expect(dispatcher.stats()).toEqual({ running: 1, unplaced: 0 });
  });

  test("comes after what was lost with a worker and is sent again", async () => {
    const { submit, process, processes } = started({ maxRunningPerWorker: 2 });
    for (const id of ["a", "b", "c"]) submit(id, "tenant_a");
    process.die();
    while (processes.length < 2) await Bun.sleep(1);
    const [, next] = processes;
    next?.ready();
    next?.core.tick();
    expect(next?.submittedIds).toEqual(["a.2", "b.2", "c.1"]);
  });

  test("has its turn the later, the longer the prompts that were computed for its tenant", () => {
    const { submit, process, sent } = started({ maxRunningPerWorker: 1 });
    const long = (token: number) => ({ plan: plan(Array.from({ length: 2_000 }, () => token)) });
    for (const token of [1, 2, 3]) submit(`a${token}`, "tenant_a", long(token));
    for (let index = 0; index < 8; index++) submit(`b${index}`, "tenant_b");
    for (let tick = 0; tick < 12; tick++) process.core.tick();
    const order = sent().map((id) => id.charAt(0));
    expect(order.join("")).toBe("aabbbbbbbba");
  });

  test("ends with the shutdown when its worker is lost meanwhile", async () => {
    const { submit, process, dispatcher } = started();
    const end = submit("a", "tenant_a", { params: greedy(100) }).next();
    const drained = dispatcher.drain(30);
    process.die();
    await expect(end).rejects.toMatchObject({ code: "server_shutdown" });
    await drained;
    expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
  });

  test("is failed, not sent, when the server shuts down", async () => {
    const { submit, sent, dispatcher } = started({ maxRunningPerWorker: 1 });
    submit("a", "tenant_a")
      .next()
      .catch(() => undefined);
    const waiting = ["b", "c"].map((id) => submit(id, "tenant_a").next());
    const ends = Promise.allSettled(waiting);
    await dispatcher.drain(1);
    expect((await ends).map(({ status }) => status)).toEqual(["rejected", "rejected"]);
    expect(sent()).toEqual(["a.1"]);
  });
});

describe("places of a worker", () => {
  const nowMs = { value: 0 };
  const options = { maxRunningPerWorker: 16, nowMs: () => nowMs.value };
  const ids = (count: number, name: string) => Array.from({ length: count }, (_, index) => `${name}${index}`);

  test("are all a tenant's that is alone, and some wait there for the next", () => {
    const { submit, sent, dispatcher } = started(options);
    for (const id of ids(20, "a")) submit(id, "tenant_a");
    expect(sent()).toHaveLength(18);
    expect(dispatcher.stats()).toEqual({ running: 18, unplaced: 2 });
  });

  test("are kept for a tenant with few requests while others have been there lately", () => {
    const { submit, sent, process, dispatcher } = started(options);
    submit("b0", "tenant_b");
    process.core.tick();
    for (const id of ids(20, "a")) submit(id, "tenant_a", { params: greedy(100) });
    expect(dispatcher.stats()).toEqual({ running: 14, unplaced: 6 });
    for (const id of ids(3, "c")) submit(id, "tenant_c", { params: greedy(100) });
    expect(sent().slice(-2)).toEqual(["c0.1", "c1.1"]);
    expect(dispatcher.stats()).toEqual({ running: 16, unplaced: 7 });
    process.core.receive({ type: "abort", requestId: "c0.1" });
    expect(sent().at(-1)).toBe("c2.1");
  });

  test("are a tenant's again when the others have not come for a minute", () => {
    const { submit, process, dispatcher } = started(options);
    submit("b0", "tenant_b");
    process.core.tick();
    for (const id of ids(16, "a")) submit(id, "tenant_a", { params: greedy(100) });
    expect(dispatcher.stats().running).toBe(14);
    nowMs.value += 61_000;
    submit("a16", "tenant_a", { params: greedy(1) });
    for (let tick = 0; tick < 250; tick++) process.core.tick();
    expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
    for (const id of ids(20, "d")) submit(id, "tenant_a");
    expect(dispatcher.stats().running).toBe(18);
  });
});
