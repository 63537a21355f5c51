/** The request that /docs shows for each route, sent to a whole server. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { curlLine, type Example, examples, shownIds, withIds } from "../../../gateway/http/openapi/examples.ts";
import type { RouteDeclaration } from "../../../gateway/http/transport/route.ts";
import { type FuzzWorld, model, type ObjectIds, openWorld } from "../../fuzz/world.ts";

setDefaultTimeout(120_000);

let world: FuzzWorld;
beforeAll(async () => {
  world = await openWorld();
});
afterAll(async () => await world[Symbol.asyncDispose]());

const nameOf = ({ method, path }: RouteDeclaration): string => `${method} ${path.replace(/\{[^}]*\}/g, "")}`;
const exampleOf = (route: RouteDeclaration): Example => (examples as Record<string, Example>)[nameOf(route)] ?? {};

/** Ids that a body names. */
async function idsFor(route: RouteDeclaration, part: ObjectIds): Promise<ObjectIds> {
  const ids = { ...world.ids, ...part };
  if (route.path === "/v1/batches" && route.method === "POST") {
    const body = { model, messages: [{ role: "user", content: "Anna" }] };
    const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body };
    const form = new FormData();
    form.set("purpose", "batch");
    form.set("file", new File([JSON.stringify(line)], "lines.jsonl"));
    const made = await world.call(world.caller.apiKey, "POST", "/v1/files", form);
    return { ...ids, input_file_id: ((await made.json()) as { id: string }).id };
  }
  const other = await world.tenant("other");
  return { ...ids, other_tenant_id: other.id, api_key: other.apiKey };
}

async function send(route: RouteDeclaration, ids: ObjectIds): Promise<Response> {
  const { json, text, form, headers: own = {}, search = "" } = exampleOf(route);
  const named = (words: string): string =>
    withIds(words, ids).replaceAll('"demo"', `"${model}"`).replace("model: demo", `model: ${model}`);
  const headers = new Headers({ ...own, authorization: `Bearer ${keyFor(route)}` });
  let body: string | FormData | undefined;
  if (json !== undefined) [body] = [named(JSON.stringify(json)), headers.set("content-type", "application/json")];
  if (text !== undefined) [body] = [named(text.body), headers.set("content-type", text.type)];
  if (form !== undefined) {
    const data = new FormData();
    for (const [name, value] of Object.entries(form)) {
      data.set(name, value.startsWith("@") ? new File(["x".repeat(8)], value.slice(1)) : value);
    }
    body = data;
  }
  if (route.path === "/mcp") headers.set("accept", "application/json, text/event-stream");
  const path = route.path.replace(/:(\w+)(\{[^}]*\})?/g, (_, name: string) => ids[name] ?? name);
  return await fetch(`${world.url}${path}${search}`, {
    method: route.method,
    headers,
    ...(body === undefined ? {} : { body }),
  });
}

const keyFor = ({ scope }: RouteDeclaration): string =>
  [scope].flat().some((name) => name.startsWith("platform:")) ? world.adminKey : world.caller.apiKey;

test("every route that reads a body has an example", () => {
  const bare = world.routes.filter(({ method, about, ...route }) => {
    const reads = about?.body !== undefined || about?.bodyTypes !== undefined;
    const { json, text, form } = exampleOf({ method, ...route } as RouteDeclaration);
    return reads && (json ?? text ?? form) === undefined;
  });
  expect(bare.map(nameOf)).toEqual([]);
  const names = new Set(world.routes.map(nameOf));
  expect(Object.keys(examples).filter((name) => !names.has(name))).toEqual([]);
});

test("every example that reads a body is answered as the route says", async () => {
  const wrong: string[] = [];
  let part: ObjectIds = {};
  for (const route of world.routes) {
    const { json, text, form } = exampleOf(route);
    if ((json ?? text ?? form) === undefined) continue;
    const response = await send(route, await idsFor(route, part));
    const answer = await response.text();
    if (response.status !== (route.about?.status ?? 200))
      wrong.push(`${nameOf(route)}: ${response.status} ${answer.slice(0, 300)}`);
    if (route.path.endsWith("/parts")) part = partOf(answer);
  }
  expect(wrong).toEqual([]);
});

/** The upload that has the part is the one that is completed. */
const partOf = (answer: string): ObjectIds => {
  const { id, upload_id } = JSON.parse(answer) as { id: string; upload_id: string };
  return { part_id: id, upload_id };
};

test("a line of shell quotes what it sends, and shows how ids look", () => {
  const route = { method: "POST", path: "/v1/x/{file_id}", needsKey: true, streams: false };
  const line = curlLine(route, { json: { text: "it's $HOME" }, search: "?a=1" });
  expect(line).toBe(
    `curl -s "$SPANGATE_URL/v1/x/file-…?a=1" \\\n  -H "Authorization: Bearer $SPANGATE_API_KEY" \\\n  -H 'Content-Type: application/json' \\\n  -d '{\n  "text": "it'\\''s $HOME"\n}'`,
  );
  expect(curlLine({ ...route, method: "DELETE", needsKey: false }, {})).toBe(
    "curl -s -X DELETE $SPANGATE_URL/v1/x/file-…",
  );
  const shown = world.routes.flatMap(({ path }) => [...path.matchAll(/:(\w+)/g)].map(([, name = ""]) => name));
  const isDocs = (name: string): boolean => ["page", "resource", "picture"].includes(name);
  expect(shown.filter((name) => !(name in shownIds) && !isDocs(name))).toEqual([]);
});
