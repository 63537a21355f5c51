/** Hostile bodies, query strings and ids to every route. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { effort } from "../support/effort.ts";
import { testSeed } from "../support/seed.ts";
import { runCampaign } from "./campaign.ts";
import { faultOf } from "./oracle.ts";
import { type FuzzWorld, openWorld } from "./world.ts";

const caseCount = effort(1_300, 10_000);
setDefaultTimeout(effort(120_000, 1_200_000));

let world: FuzzWorld;
beforeAll(async () => {
  world = await openWorld();
});
afterAll(async () => await world[Symbol.asyncDispose]());

test("no request makes a handler fail, and every error has its shape", async () => {
  const { faults, statuses, cases } = await runCampaign(world, { cases: caseCount, seed: testSeed() });
  expect(faults).toEqual([]);
  expect(cases).toBe(caseCount);
  // Every route was asked, and most let something through: else the requests would be too broken to reach the code.
  const asked = new Set([...statuses.keys()].map((key) => key.replace(/ \d+$/, "")));
  expect(world.routes.map(({ method, path }) => `${method} ${path}`).filter((route) => !asked.has(route))).toEqual([]);
  const served = new Set(
    [...statuses.keys()].filter((key) => / 2\d\d$/.test(key)).map((key) => key.replace(/ \d+$/, "")),
  );
  expect(served.size / asked.size).toBeGreaterThan(0.8);
});

test("the server is as it was: alive, its worker never lost, nothing left running", async () => {
  expect((await world.call(undefined, "GET", "/ready")).status).toBe(200);
  const workers = await world.call(world.adminKey, "GET", "/admin/v1/workers");
  expect(await workers.json()).toMatchObject({ data: [{ restarts: 0, state: "ready", in_flight_requests: 0 }] });
});

test("the judge sees what is wrong with an answer", () => {
  const error = { message: "No such object.", type: "not_found_error", param: null, code: "not_found" };
  const good = {
    path: "/v1/files/x",
    status: 404,
    contentType: "application/json",
    requestId: `req_${"0".repeat(32)}`,
    text: JSON.stringify({ error }),
    ms: 1,
  };
  expect(faultOf(good)).toBeUndefined();
  const bad = [
    { status: 500 },
    { status: 400 },
    { requestId: null },
    { ms: 60_000 },
    { contentType: "text/plain" },
    { text: "{" },
    { text: JSON.stringify({ error: { ...error, code: "other" } }) },
    { text: JSON.stringify({ error: { ...error, stack: "x" } }) },
    { text: JSON.stringify({ error: { ...error, message: "x".repeat(5_000) } }) },
    { text: JSON.stringify({ error: { ...error, message: "SQLITE_ERROR: near x" } }) },
    { text: JSON.stringify({ error, more: 1 }) },
    { path: "/v1/messages" },
    { status: 200, text: "{" },
    { status: 200, contentType: "text/event-stream", text: 'data: {"error":{"code":"internal"}}\n\n' },
    { status: 200, contentType: "text/event-stream", text: "data: {" },
  ];
  for (const change of bad) expect([change, faultOf({ ...good, ...change })]).not.toEqual([change, undefined]);
});
