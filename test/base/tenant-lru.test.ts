/** What is remembered for tenants under one bound: who has most loses first, and nobody else's is found. */
import { expect, test } from "bun:test";
import { SecretNames } from "../../gateway/base/secret-names.ts";
import { TenantLru } from "../../gateway/base/tenant-lru.ts";

test("who has most loses what it used longest ago; the others keep all", () => {
  const forgotten: string[] = [];
  const lru = new TenantLru<number>({ maxSize: 64, onForget: (tenantId, value) => forgotten.push(tenantId + value) });
  for (let n = 0; n < 20; n++) lru.set("small", `${n}`, n);
  for (let n = 0; n < 44; n++) lru.set("large", `${n}`, n);
  expect(lru.get("large", "0")).toBe(0);
  lru.set("large", "44", 44);
  expect(forgotten).toEqual(["large1", "large2"]);
  expect(lru.peek("large", "0")).toBe(0);
  expect(lru.peek("large", "1")).toBeUndefined();
  for (let n = 0; n < 1_000; n++) lru.set("large", `more ${n}`, n);
  for (let n = 0; n < 20; n++) expect(lru.peek("small", `${n}`)).toBe(n);
  expect(lru.peek("another", "0")).toBeUndefined();
  expect(forgotten.every((name) => name.startsWith("large"))).toBe(true);
});

test("entries have sizes, an entry that is set again counts once, and one that is too large is not kept", () => {
  const lru = new TenantLru<string>({ maxSize: 10 });
  for (let n = 0; n < 5; n++) lru.set("t", "same", "value", 10);
  expect(lru.peek("t", "same")).toBe("value");
  lru.set("t", "whole", "value", 11);
  expect(lru.peek("t", "whole")).toBeUndefined();
});

test("as many tenants as there is room for lose to each other one by one", () => {
  const forgotten = new Set<string>();
  const lru = new TenantLru<number>({ maxSize: 128, onForget: (tenantId) => forgotten.add(tenantId) });
  for (let n = 0; n < 130; n++) lru.set(`t${n}`, "name", n);
  expect([...forgotten]).toEqual(["t0", "t1", "t2"]);
});

test("names are told apart by parts, and are another process's or another use's own", () => {
  const names = new SecretNames();
  const bytes = new TextEncoder().encode("ab");
  const lists = [
    ["ab"],
    ["a", "b"],
    ["b", "a"],
    ["", "ab"],
    ["ab", ""],
    [bytes],
    [bytes, ""],
    [],
    ["text 2 ab"],
  ] as const;
  expect(new Set(lists.map((parts) => names.of(...parts))).size).toBe(lists.length);
  expect(names.of("a", "b")).toBe(names.of("a", "b"));
  expect(names.of("a", "b")).toMatch(/^[0-9a-f]{32}$/);
  expect(new SecretNames().of("a", "b")).not.toBe(names.of("a", "b"));
});
