import { describe, expect, test } from "bun:test";
import { BodyMemory } from "../../../gateway/http/transport/body-memory.ts";

const memory = () => new BodyMemory({ totalBytes: 100, tenantBytes: 40, reserveBytes: 10, tenantBodies: 3 });
const refused = (code: string) => expect.objectContaining({ code });
const codeOf = (work: () => void): string | undefined => {
  try {
    work();
    return undefined;
  } catch (error) {
    return (error as { code?: string }).code;
  }
};

describe("memory for bodies", () => {
  test("a tenant's bodies claim what they announce, and are refused before their first byte", () => {
    const held = memory();
    const first = held.open("a", 30);
    expect(codeOf(() => held.open("a", 21))).toBe("concurrency_limited");
    held.open("a", 20);
    expect(held.heldBytes).toBe(0);
    first.release();
    expect(codeOf(() => held.open("a", 30))).toBeUndefined();
  });

  test("a body that announces nothing, or less than it has, claims what comes", () => {
    const body = memory().open("a", 0);
    body.take(50);
    expect(() => body.take(1)).toThrow(refused("concurrency_limited"));
    const modest = memory().open("a", 10);
    for (let sent = 0; sent < 50; sent += 10) modest.take(10);
    expect(() => modest.take(1)).toThrow(refused("concurrency_limited"));
  });

  test("announcements alone fill nothing for others; what came does, but never their reserves", () => {
    const held = memory();
    const bodies = ["a", "b", "c"].map((tenant) => held.open(tenant, 50));
    const late = held.open("d", 50);
    for (const body of bodies) body.take(40);
    // 90 of 100 are taken, beside what each has in its reserve.
    expect(held.heldBytes).toBe(120);
    late.take(20);
    expect(() => late.take(1)).toThrow(refused("overloaded"));
    expect(codeOf(() => held.open("e", 11))).toBe("overloaded");
    const small = held.open("e", 10);
    small.take(10);
    expect(() => small.take(1)).toThrow(refused("overloaded"));
  });

  test("all comes back, once, whatever was refused meanwhile", () => {
    const held = memory();
    for (let round = 0; round < 5; round++) {
      const bodies = ["a", "b", "c"].map((tenant) => held.open(tenant, 5 * round));
      for (const body of bodies) for (let sent = 0; sent < 60; sent += 7) codeOf(() => body.take(7));
      for (const body of [...bodies, ...bodies]) body.release();
      bodies[0]?.take(50);
      expect(held.heldBytes).toBe(0);
    }
    const whole = held.open("d", 50);
    whole.take(50);
    expect(held.heldBytes).toBe(50);
  });

  test("so many bodies of a tenant are read at once", () => {
    const held = memory();
    const bodies = [held.open("a", 0), held.open("a", 0), held.open("a", 0)];
    expect(codeOf(() => held.open("a", 0))).toBe("concurrency_limited");
    held.open("b", 0);
    bodies[0]?.release();
    held.open("a", 0);
  });
});
