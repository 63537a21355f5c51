/**
 * Another tenant's objects answer byte for byte as ones that do not exist, on every route of the server as it is
 * started: in the path, in the query string and in the body. Cases are made from the route table, so that a new
 * route is held to it without being named here.
 */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import type { RouteDeclaration } from "../../gateway/http/transport/route.ts";
import { bodyOf, plainBodies } from "../fuzz/bodies.ts";
import { type Caller, type FuzzWorld, type ObjectIds, openWorld } from "../fuzz/world.ts";
import { Choices } from "../sim/random.ts";
import { fc } from "../support/fast-check.ts";
import { testSeed } from "../support/seed.ts";

setDefaultTimeout(120_000);

const choices = new Choices(testSeed());
let world: FuzzWorld;
let alice: Caller;
let bob: Caller;
let alices: ObjectIds;
let bobs: ObjectIds;

beforeAll(async () => {
  world = await openWorld();
  alice = world.caller;
  bob = await world.tenant("bob");
  alices = await withTenant(alice);
  bobs = await withTenant(bob);
});
afterAll(async () => await world[Symbol.asyncDispose]());

/** The tenant itself and a key of it are objects too. */
async function withTenant(owner: Caller): Promise<ObjectIds> {
  const ids = await world.objectsOf(owner);
  const made = await world.call(world.adminKey, "POST", `/admin/v1/tenants/${owner.id}/keys`, {
    scopes: ["inference"],
  });
  const { id } = (await made.json()) as { id: string };
  return { ...ids, tenant_id: owner.id, key_id: id };
}

/** Ids that look as the given ones do, and that nobody has. */
function unknownLike(ids: ObjectIds): ObjectIds {
  const random = (text: string): string => text.replace(/[0-9a-z]/g, () => String(choices.int(0, 9)));
  const entries = Object.entries(ids).map(([name, id]) => {
    const [, prefix = "", rest = ""] = /^(.*[_-])?(.*)$/.exec(id) ?? [];
    return [name, `${prefix}${random(rest)}`] as const;
  });
  return Object.fromEntries(entries);
}

const labelOf = ({ method, path }: RouteDeclaration): string => `${method} ${path}`;
const paramsOf = ({ path }: RouteDeclaration): readonly string[] =>
  [...path.matchAll(/:(\w+)/g)].map(([, name = ""]) => name);
const fill = (text: string, ids: ObjectIds): string =>
  text
    .replace(/:(\w+)/g, (all, name: string) => ids[name] ?? all)
    .replace(/\{(\w+)\}/g, (all, name: string) => ids[name] ?? all);

interface Asked {
  readonly key: string;
  readonly ids: ObjectIds;
  /** With `{name}` where an id stands. */
  readonly body?: string | undefined;
  readonly search?: string;
}

/** Status, headers and body, without what is the request's own. */
async function answerTo(route: RouteDeclaration, { key, ids, body, search = "" }: Asked): Promise<string> {
  const contentType = bodyOf(route)?.contentType ?? "application/json";
  const response = await fetch(`${world.url}${fill(route.path, ids)}${fill(search, ids)}`, {
    method: route.method,
    headers: { authorization: `Bearer ${key}`, "content-type": contentType },
    ...(body === undefined || route.method === "GET" ? {} : { body: fill(body, ids) }),
  });
  const text = await response.text();
  const headers = [...response.headers].filter(([name]) => name !== "date").map((pair) => pair.join(": "));
  const whole = [String(response.status), ...headers.sort(), text].join("\n");
  const given = Object.values(ids).filter((id) => id.length > 20);
  return given.reduce((left, id) => left.replaceAll(id, "<id>"), whole.replace(/req_[0-9a-f]{32}/g, "<request>"));
}

const statusOf = (answer: string): number => Number(answer.slice(0, 3));

/** A body that the route's schema lets through, found by trying it on objects of the caller's own. */
async function workingBody(route: RouteDeclaration): Promise<string | undefined> {
  const kind = bodyOf(route);
  if (kind === undefined) return undefined;
  for (const value of fc.sample(kind.value, { numRuns: 300 })) {
    const body = JSON.stringify(value);
    const status = statusOf(await answerTo(route, { key: bob.apiKey, ids: unknownLike(bobs), body }));
    if (status === 404 || status === 403 || status < 300) return body;
  }
  throw new Error(`${labelOf(route)}: no body that is valid`);
}

/** Objects of the server's, which are everybody's. */
const shared = new Set([
  "/v1/models/:id",
  "/console/:asset",
  "/docs/:page",
  "/docs/api/:resource",
  "/docs/pictures/:picture",
]);
const idRoutes = () => world.routes.filter((route) => paramsOf(route).length > 0 && !shared.has(route.path));

test("in the path, all of them or one among the caller's own", async () => {
  expect(idRoutes().length).toBeGreaterThan(30);
  for (const route of idRoutes()) {
    const names = paramsOf(route);
    expect([labelOf(route), names.filter((name) => alices[name] === undefined)]).toEqual([labelOf(route), []]);
    const body = await workingBody(route);
    const unknown = unknownLike(alices);
    for (const foreign of [names, ...names.map((name) => [name])]) {
      const mixed = (others: ObjectIds): ObjectIds =>
        Object.fromEntries(
          Object.entries(bobs).map(([name, id]) => [name, foreign.includes(name) ? (others[name] ?? "") : id]),
        );
      const asked = (others: ObjectIds) => answerTo(route, { key: bob.apiKey, ids: { ...mixed(others) }, body });
      const [theirs, nobodys] = [await asked(alices), await asked(unknown)];
      const label = `${labelOf(route)} with another's ${foreign.join(", ")}`;
      expect(`${label}\n${theirs}`).toBe(`${label}\n${nobodys}`);
      const refused = route.scope === "platform:admin" ? 403 : 404;
      expect([label, statusOf(theirs)]).toEqual([label, refused]);
    }
  }
});

test("in the body, wherever an id may stand", async () => {
  const tried = new Set<string>();
  for (const route of world.routes) {
    if (route.scope === "platform:admin") continue;
    const values = plainBodies(route).flatMap((kind) => fc.sample(kind, { numRuns: 40 }));
    for (const value of values) {
      const body = JSON.stringify(value);
      // Whom a store is shared with is said by whoever shares it: tenants' ids are told, not searched for.
      const names = [...body.matchAll(/\{(\w+)\}/g)]
        .map(([, name = ""]) => name)
        .filter((name) => name in alices && name !== "tenant_id");
      const [name] = names;
      if (name === undefined || tried.has(`${labelOf(route)} {${name}}`)) continue;
      const unknown = unknownLike(alices);
      const asked = (others: ObjectIds) =>
        answerTo(route, { key: bob.apiKey, ids: { ...bobs, [name]: others[name] ?? "" }, body });
      const [theirs, nobodys] = [await asked(alices), await asked(unknown)];
      const label = `${labelOf(route)} ${body.slice(0, 200)}`;
      expect(`${label}\n${withoutTimes(theirs)}`).toBe(`${label}\n${withoutTimes(nobodys)}`);
      // A stream has begun before it fails; nothing else succeeds.
      if (!theirs.includes("x-bulk-id")) expect([label, statusOf(theirs) >= 400]).toEqual([label, true]);
      if (statusOf(theirs) === 404) tried.add(`${labelOf(route)} {${name}}`);
    }
  }
  // Each of these was met with a body that was right in all else.
  expect([...tried].sort()).toEqual(
    expect.arrayContaining([
      "POST /v1/chat/completions {vector_store_id}",
      "POST /v1/messages {vector_store_id}",
      "POST /v1/query/execute {vector_store_id}",
      "POST /v1/responses {response_id}",
      "POST /v1/responses {vector_store_id}",
      "POST /v1/vector_stores {file_id}",
      "POST /v1/vector_stores/:vector_store_id/file_batches {file_id}",
      "POST /v1/vector_stores/:vector_store_id/files {file_id}",
    ]),
  );
});

/** A bulk request has an id and a time of its own. */
const withoutTimes = (answer: string): string =>
  answer.replace(/bulk_[0-9a-f]{32}/g, "<bulk>").replace(/"(?:created_at|finished_at|created)":\d+/g, '"at":0');

test("in query strings: cursors and filters", async () => {
  const seen: string[] = [];
  for (const route of world.routes.filter(
    ({ about, scope }) => about?.query !== undefined && scope !== "platform:admin",
  )) {
    for (const param of Object.keys(route.about?.query?.shape ?? {})) {
      if (!/^(?:after|before|.*_id)$/.test(param)) continue;
      const unknown = unknownLike(alices);
      for (const name of Object.keys(alices)) {
        const asked = (others: ObjectIds) =>
          answerTo(route, {
            key: bob.apiKey,
            ids: { ...bobs, other: others[name] ?? "" },
            search: `?${param}={other}`,
          });
        const label = `${labelOf(route)}?${param}={${name}}`;
        expect(`${label}\n${await asked(alices)}`).toBe(`${label}\n${await asked(unknown)}`);
        seen.push(label);
      }
    }
  }
  expect(seen.length).toBeGreaterThan(100);
});

test("nothing that a tenant can read holds an id of another tenant's", async () => {
  const ids = Object.values(alices).filter((id) => id.length > 20);
  for (const route of world.routes.filter(({ method, path }) => method === "GET" && !path.endsWith("/events"))) {
    const answer = await world.call(bob.apiKey, "GET", fill(route.path, bobs));
    const text = await answer.text();
    expect([labelOf(route), ids.filter((id) => text.includes(id))]).toEqual([labelOf(route), []]);
  }
});

test("after all that, everything is still there for its owner", async () => {
  for (const route of idRoutes().filter(({ method, path }) => method === "GET" && !path.endsWith("/events"))) {
    const answer = await world.call(alice.apiKey, "GET", fill(route.path, alices));
    await answer.arrayBuffer();
    expect([labelOf(route), answer.status]).toEqual([labelOf(route), route.scope === "platform:admin" ? 403 : 200]);
  }
});
