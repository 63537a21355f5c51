import { expect, test } from "bun:test";
import { BulkResults } from "../../../gateway/execute/bulk/bulk-results.ts";

const usage = { promptTokens: 10, completionTokens: 2, cachedTokens: 4, cacheWriteTokens: 3 };

function openResults(fields: { tenants?: number; bulksPerTenant?: number; bytesPerTenant?: number } = {}) {
  const clock = { nowMs: 1_000 };
  const results = new BulkResults({
    tenants: 4,
    bulksPerTenant: 4,
    bytesPerTenant: 100_000,
    keepMs: 500,
    ...fields,
    nowMs: () => clock.nowMs,
  });
  return { results, clock };
}

test("results are found by tenant, bulk and id together", () => {
  const { results } = openResults();
  const ours = results.open("tenant_a", 2);
  const others = results.open("tenant_b", 2);
  ours.add("1", "one", usage);
  others.add("1", "theirs", usage);
  expect(results.line("tenant_a", ours.id, "1")).toBe("one");
  expect(results.line("tenant_b", ours.id, "1")).toBeUndefined();
  expect(results.line("tenant_a", others.id, "1")).toBeUndefined();
  expect(results.line("tenant_a", ours.id, "2")).toBeUndefined();
  expect(results.bulk("tenant_a", ours.id)).toBe(ours);
  expect(results.bulk("tenant_b", ours.id)).toBeUndefined();
  expect(results.bulk("tenant_nobody", ours.id)).toBeUndefined();
});

test("counts what is done, and adds up the tokens of what went well", () => {
  const { results, clock } = openResults();
  const record = results.open("tenant_a", 3);
  record.planned("planned");
  record.add("1", "one", usage);
  record.add("2", "two", undefined);
  expect(record.state()).toMatchObject({ status: "running", completed: 1, failed: 1, usage, endedMs: undefined });
  record.add("3", "three", usage);
  clock.nowMs += 5;
  record.end();
  expect(record.state()).toEqual({
    status: "completed",
    order: "planned",
    completed: 2,
    failed: 1,
    usage: { promptTokens: 20, completionTokens: 4, cachedTokens: 8, cacheWriteTokens: 6 },
    endedMs: 1_005,
  });
});

test("one that ends with results missing was cancelled", () => {
  const record = openResults().results.open("tenant_a", 2);
  record.add("1", "one", usage);
  record.end();
  expect(record.state().status).toBe("cancelled");
});

test("a tenant's oldest results make room for its newest, and for nobody else's", () => {
  const { results } = openResults({ bytesPerTenant: 3_000 });
  const other = results.open("tenant_b", 1);
  other.add("1", "x".repeat(1_000), usage);
  const record = results.open("tenant_a", 3);
  for (const id of ["1", "2", "3"]) record.add(id, "x".repeat(500), usage);
  expect(["1", "2", "3"].map((id) => results.line("tenant_a", record.id, id)?.length)).toEqual([undefined, 500, 500]);
  expect(results.line("tenant_b", other.id, "1")?.length).toBe(1_000);
  record.add("huge", "x".repeat(5_000), usage);
  expect(results.line("tenant_a", record.id, "huge")).toBeUndefined();
  expect(record.state().completed).toBe(4);
});

test("what is too old is gone, and the oldest of too many", () => {
  const { results, clock } = openResults({ bulksPerTenant: 2 });
  const [first, second, third] = [1, 2, 3].map(() => results.open("tenant_a", 1));
  if (first === undefined || second === undefined || third === undefined) throw new Error("three were opened");
  expect([first, second, third].map(({ id }) => results.bulk("tenant_a", id) !== undefined)).toEqual([
    false,
    true,
    true,
  ]);
  third.add("1", "one", usage);
  clock.nowMs += 499;
  expect(results.line("tenant_a", third.id, "1")).toBe("one");
  clock.nowMs += 2;
  expect(results.line("tenant_a", third.id, "1")).toBeUndefined();
  expect(results.bulk("tenant_a", third.id)).toBeUndefined();
});

test("tenants are bounded: the one that was quiet longest goes, and its running bulk goes on", () => {
  const { results } = openResults({ tenants: 1 });
  const record = results.open("tenant_a", 1);
  results.open("tenant_b", 1);
  record.add("1", "one", usage);
  record.end();
  expect(results.line("tenant_a", record.id, "1")).toBeUndefined();
  expect(record.state().status).toBe("completed");
});
