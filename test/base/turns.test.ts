/** Whose request runs when many wait, and that other work of the event loop runs between them. */
import { describe, expect, test } from "bun:test";
import { Hono } from "hono";
import { Turns } from "../../gateway/base/turns.ts";
import { BodyMemory } from "../../gateway/http/transport/body-memory.ts";
import type { AppEnv } from "../../gateway/http/transport/context.ts";
import { readNoFields } from "../../gateway/http/transport/paging.ts";
import { RequestBudget } from "../../gateway/http/transport/request-budget.ts";
import { declareRoute } from "../../gateway/http/transport/route.ts";

const round = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe("turns", () => {
  test("who comes alone does not wait", async () => {
    const turns = new Turns(0);
    expect(turns.take("a")).toBeUndefined();
    await round();
    await round();
    expect(turns.take("a")).toBeUndefined();
  });

  test("one that waits runs in a round of the event loop, and owners take turns", async () => {
    const turns = new Turns(0);
    const ran: string[] = [];
    const rounds: number[] = [];
    let now = 0;
    let isOver = false;
    const count = (): void => {
      now += 1;
      if (!isOver) setImmediate(count);
    };
    setImmediate(count);
    const run = async (name: string): Promise<void> => {
      await turns.take(name.charAt(0));
      ran.push(name);
      rounds.push(now);
    };
    await Promise.all(["a1", "a2", "a3", "a4", "b1", "b2", "c1"].map(run));
    isOver = true;
    expect(ran).toEqual(["a1", "a2", "b1", "c1", "a3", "b2", "a4"]);
    for (let index = 2; index < rounds.length; index++) {
      expect(rounds[index]).toBeGreaterThan(rounds[index - 1] ?? Number.NaN);
    }
  });
});

test("requests that take no time do not wait for each other, until they have had their part of the round", async () => {
  const turns = new Turns(5);
  expect(Array.from({ length: 20 }, () => turns.take("a")).filter((turn) => turn !== undefined)).toEqual([]);
  Bun.sleepSync(6);
  let isTurn = false;
  const turn = turns.take("a")?.then(() => {
    isTurn = true;
  });
  expect(turn).toBeDefined();
  // As long as one waits, so do those behind it, also of others.
  expect(turns.take("b")).toBeDefined();
  await turn;
  expect(isTurn).toBe(true);
});

describe("routes", () => {
  const memory = new BodyMemory({ totalBytes: 1e6, tenantBytes: 1e6, reserveBytes: 1e6, tenantBodies: 1e3 });

  function rig() {
    const app = new Hono<AppEnv>();
    const turns = new Turns(0);
    const ran: string[] = [];
    app.use("*", async (context, next) => {
      context.set("budget", new RequestBudget(memory, context.req.header("x-owner") ?? "", turns));
      await next();
    });
    const shared = { scope: "public", count: "free" } as const;
    declareRoute(app, { ...shared, method: "GET", path: "/look" }, (context) => {
      ran.push(context.req.header("x-owner") ?? "");
      return context.body(null);
    });
    declareRoute(app, { ...shared, method: "POST", path: "/change" }, async (context) => {
      await readNoFields(context);
      ran.push(context.req.header("x-owner") ?? "");
      return context.body(null);
    });
    const send = async (owner: string, method: string, path: string, body?: string): Promise<void> => {
      const response = await app.request(path, { method, headers: { "x-owner": owner }, ...(body && { body }) });
      expect(response.status).toBe(200);
    };
    return { send, ran };
  }

  for (const body of [undefined, "{}"]) {
    test(`another tenant's change does not wait for all of one's (body ${body})`, async () => {
      const { send, ran } = rig();
      const owners = [...Array.from({ length: 50 }, () => "many"), "other"];
      await Promise.all(owners.map((owner) => send(owner, "POST", "/change", body)));
      expect(ran.indexOf("other")).toBeLessThan(4);
      expect(ran).toHaveLength(51);
    });
  }

  test("without a caller each route has turns of its own", async () => {
    const { send, ran } = rig();
    const looks = Array.from({ length: 50 }, () => send("", "GET", "/look"));
    await Promise.all([...looks, send("other", "POST", "/change")]);
    expect(ran.indexOf("other")).toBeLessThan(4);
  });
});
