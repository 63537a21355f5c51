/** Sessions of the console on a clock of the test's, and how often a sign-in may fail. */
import { beforeEach, describe, expect, test } from "bun:test";
import { newId } from "../../db/ids.ts";
import { type ApiError, toApiError } from "../../gateway/base/errors.ts";
import type { Principal } from "../../gateway/tenant/principal.ts";
import { ServerSecret } from "../../gateway/tenant/secret.ts";
import { Sessions } from "../../gateway/tenant/sessions.ts";
import { SignInFailures } from "../../gateway/tenant/sign-in-failures.ts";

const hourMs = 3_600_000;
const bounds = { sessionMs: 12 * hourMs, sessionIdleMs: hourMs, sessionsPerKey: 2, sessions: 4, signInLinks: 2 };
const [key, other, third] = [newId("apiKey"), newId("apiKey"), newId("apiKey")];

describe("a session", () => {
  let now: number;
  let revoked: Set<string>;
  let sessions: Sessions;
  beforeEach(() => {
    now = 1_800_000_000_000;
    revoked = new Set();
    sessions = new Sessions({
      secret: new ServerSecret(new Uint8Array(32).fill(7)),
      principalOf: (keyId): Principal | undefined =>
        revoked.has(keyId) ? undefined : { keyId, tenantId: undefined, scopes: new Set(["inference"]) },
      bounds,
      nowMs: () => now,
    });
  });
  const keyOf = (token: string) => sessions.find(token)?.principal.keyId;

  test("stands for its key until it is ended, and no other token does", () => {
    const { token, endsAtMs } = sessions.begin(key);
    expect(token).toMatch(/^[\w-]{43}$/);
    expect(endsAtMs).toBe(now + 12 * hourMs);
    expect(keyOf(token)).toBe(key);
    expect(keyOf(`${token}x`)).toBeUndefined();
    expect(keyOf("")).toBeUndefined();
    sessions.end(token);
    expect(keyOf(token)).toBeUndefined();
  });

  test("is open until it ends, and being asked that is no use of it", () => {
    const [{ token }, ended, without] = [sessions.begin(key), sessions.begin(other), sessions.begin(third)];
    sessions.end(ended.token);
    revoked.add(third);
    expect([token, ended.token, without.token, "x"].map((one) => sessions.isOpen(one))).toEqual([
      true,
      false,
      false,
      false,
    ]);
    now += hourMs - 1;
    expect(sessions.isOpen(token)).toBe(true);
    now += 1;
    expect(sessions.isOpen(token)).toBe(false);
  });

  test("ends after an hour without use, which use puts off, and after twelve whatever is done", () => {
    const { token } = sessions.begin(key);
    for (let minutes = 0; minutes < 12 * 60; minutes += 59) {
      expect(keyOf(token)).toBe(key);
      now += 59 * 60_000;
    }
    expect(keyOf(token)).toBeUndefined();
    const idle = sessions.begin(key).token;
    now += hourMs - 1;
    expect(keyOf(idle)).toBe(key);
    now += hourMs;
    expect(keyOf(idle)).toBeUndefined();
  });

  test("ends with its key, and does not come back with it", () => {
    const { token } = sessions.begin(key);
    revoked.add(key);
    expect(keyOf(token)).toBeUndefined();
    revoked.clear();
    expect(keyOf(token)).toBeUndefined();
  });

  test("makes room for a later one: among those of its key, then among all", () => {
    const own = [0, 1, 2].map(() => sessions.begin(key).token);
    expect(own.map(keyOf)).toEqual([undefined, key, key]);
    const others = [0, 1].map(() => sessions.begin(other).token);
    expect([...own.slice(1), ...others].map(keyOf)).toEqual([key, key, other, other]);
    const last = sessions.begin(third).token;
    expect([...own.slice(1), ...others, last].map(keyOf)).toEqual([undefined, key, other, other, third]);
  });

  test("by a link begins once; of many links the latest count", () => {
    const link = sessions.makeLink(key);
    expect(sessions.takeLink(link)?.keyId).toBe(key);
    expect(sessions.takeLink(link)).toBeUndefined();
    expect(sessions.takeLink("other")).toBeUndefined();
    const links = [key, other, third].map((each) => sessions.makeLink(each));
    expect(links.map((each) => sessions.takeLink(each)?.keyId)).toEqual([undefined, other, third]);
    // A link's token is no session's, nor a session's a link's.
    expect(keyOf(sessions.makeLink(key))).toBeUndefined();
    expect(sessions.takeLink(sessions.begin(key).token)).toBeUndefined();
  });
});

describe("sign-ins that fail", () => {
  let now: number;
  let failures: SignInFailures;
  beforeEach(() => {
    now = 0;
    failures = new SignInFailures({ mostAMinute: 3, addresses: 2, nowMs: () => now });
  });
  const refusal = (address: string): ApiError | undefined => {
    try {
      failures.check(address);
      return undefined;
    } catch (error) {
      return toApiError(error);
    }
  };
  const refused = (address: string) => refusal(address)?.code;
  const fail = (address: string, times: number): void => {
    for (let at = 0; at < times; at++) failures.note(address);
  };

  test("are three in a minute; then nothing is looked at until a minute after the first", () => {
    fail("10.0.0.1", 2);
    now = 59_000;
    expect(refused("10.0.0.1")).toBeUndefined();
    fail("10.0.0.1", 1);
    expect(refused("10.0.0.1")).toBe("rate_limited");
    expect(refusal("10.0.0.1")?.retryAfterS).toBe(1);
    expect(refused("10.0.0.2")).toBeUndefined();
    now = 60_000;
    expect(refused("10.0.0.1")).toBeUndefined();
  });

  test("count for the whole network of an IPv6 address, however it is written", () => {
    fail("2001:db8:1:2:3:4:5:6", 2);
    fail("2001:db8:1:2::9", 1);
    expect(refused("2001:db8:1:2:ffff::")).toBe("rate_limited");
    expect(refused("2001:db8:1:3::1")).toBeUndefined();
    fail("::ffff:10.0.0.1", 3);
    expect(refused("::ffff:10.0.0.1")).toBe("rate_limited");
    expect(refused("::ffff:10.0.0.2")).toBeUndefined();
  });

  test("of more addresses than are remembered, the latest are", () => {
    fail("a", 3);
    fail("b", 3);
    fail("c", 3);
    expect(["a", "b", "c"].map(refused)).toEqual([undefined, "rate_limited", "rate_limited"]);
  });
});
