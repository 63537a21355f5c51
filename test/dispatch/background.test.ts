/** Background work: it waits for everything else, and fills a part of a worker only. */

import { expect, test } from "bun:test";
import type { TenantId } from "../../db/ids.ts";
import { FairQueue } from "../../gateway/dispatch/fair-queue.ts";
import { metered } from "../../gateway/generate/token-metering.ts";
import { RateLimiter } from "../../gateway/tenant/rate-limiter.ts";
import { greedy, readyRig, request } from "./rig.ts";

function started(maxRunningPerWorker: number) {
  const rig = readyRig(1, { maxRunningPerWorker });
  const submit = (id: string, tenantId: TenantId, { background = false, tokens = 1 } = {}) =>
    rig.dispatcher.submit(request(id, { tenantId, params: greedy(tokens), background }));
  return { ...rig, submit, sent: () => rig.process.submittedIds };
}

test("is sent when nobody else's waits, whoever came first", () => {
  const { submit, process, sent } = started(1);
  submit("a1", "tenant_a");
  for (const id of ["x1", "x2"]) submit(id, "tenant_x", { background: true });
  submit("y1", "tenant_a", { background: true });
  for (const id of ["a2", "b1", "a3"]) submit(id, id.startsWith("a") ? "tenant_a" : "tenant_b");
  for (let tick = 0; tick < 8; tick++) process.core.tick();
  expect(sent()).toEqual(["a1.1", "a2.1", "b1.1", "a3.1", "x1.1", "y1.1", "x2.1"]);
});

test("takes a quarter of the places, and leaves the others to those who come", () => {
  const { submit, sent, dispatcher } = started(16);
  for (let i = 0; i < 10; i++) submit(`x${i}`, "tenant_x", { background: true, tokens: 100 });
  expect(dispatcher.stats()).toEqual({ running: 4, unplaced: 6 });
  submit("a", "tenant_a", { tokens: 100 });
  expect(sent().at(-1)).toBe("a.1");
});

test("does not make its tenant one that others keep places for", () => {
  const { submit, dispatcher } = started(16);
  submit("x", "tenant_x", { background: true, tokens: 100 });
  for (let i = 0; i < 20; i++) submit(`a${i}`, "tenant_a", { tokens: 100 });
  expect(dispatcher.stats().running).toBe(18);
});

test("is charged to a line of its own", () => {
  const queue = new FairQueue({ maxItems: 100, maxTokens: 10_000 });
  const item = (tenantId: TenantId, background: boolean) => ({ tenantId, background, tokens: 1, arrival: 0 });
  queue.add(item("tenant_a", false));
  queue.add(item("tenant_b", false));
  queue.charge({ tenantId: "tenant_a", background: true }, 100_000);
  expect(queue.isWaiting({ tenantId: "tenant_a" })).toBe(true);
  expect(queue.isWaiting({ tenantId: "tenant_a", background: true })).toBe(false);
  expect(queue.take((it) => it)?.item.tenantId).toBe("tenant_a");
});

test("is what comes of a batch's lines", () => {
  const seen: (boolean | undefined)[] = [];
  const { dispatcher } = started(1);
  const submit: typeof dispatcher.submit = (given) => {
    seen.push(given.background);
    return dispatcher.submit(given);
  };
  const isLine = (id: string) => id.startsWith("req_line");
  const metering = metered({ submit }, new RateLimiter(10), isLine);
  for (const id of ["req_line.0", "req_other.0"]) metering.submit(request(id, { params: greedy(1) }));
  expect(seen).toEqual([true, undefined]);
});
