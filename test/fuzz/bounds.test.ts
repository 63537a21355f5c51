/** Every number, text and array of every JSON body at its bounds and just beyond them, from the routes' own schemas. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { limits } from "../../gateway/config.ts";
import { bodySchema } from "./bodies.ts";
import { faultOf, processorMs } from "./oracle.ts";
import { bodyWith, type Place, placesOf, trialsOf } from "./places.ts";
import { type FuzzWorld, openWorld } from "./world.ts";

setDefaultTimeout(120_000);

let world: FuzzWorld;
beforeAll(async () => {
  world = await openWorld();
});
afterAll(async () => await world[Symbol.asyncDispose]());

/** Routes with a JSON body, each schema once. */
const bodies = () =>
  world.routes.flatMap((route) => {
    const schema = bodySchema(route);
    return schema === undefined ? [] : [{ route, schema, label: `${route.method} ${route.path}` }];
  });

async function post(label: string, body: unknown) {
  const [method = "", path = ""] = label.split(" ");
  const isAdmin = world.routes.find((route) => route.method === method && route.path === path)?.scope;
  const key = JSON.stringify(isAdmin).includes("platform:admin") ? world.adminKey : world.caller.apiKey;
  const fill = (text: string) => text.replace(/:(\w+)/g, (all, name: string) => world.ids[name] ?? all);
  const text = JSON.stringify(body).replace(/\{(\w+)\}/g, (all, name: string) => world.ids[name] ?? all);
  const startMs = processorMs();
  const response = await world.call(key, method, fill(path), text);
  const answer = {
    path,
    status: response.status,
    contentType: response.headers.get("content-type") ?? "",
    requestId: response.headers.get("x-request-id"),
    text: await response.text(),
    ms: processorMs() - startMs,
  };
  return { ...answer, fault: faultOf(answer) };
}

/** Anthropic's errors name no field, and say it in the message. */
function namedField(text: string): string {
  const { error } = JSON.parse(text) as { error: { param?: string | null; message: string } };
  return error.param ?? /'([^']+)'/.exec(error.message)?.[1] ?? "";
}

test("beyond a bound is refused by the field's name, at a bound nothing fails", async () => {
  let trials = 0;
  for (const { label, schema } of bodies()) {
    for (const place of placesOf(schema)) {
      for (const { value, isAllowed } of trialsOf(place)) {
        const { status, text, fault } = await post(label, bodyWith(schema, place.steps, value));
        const said = [label, place.name, JSON.stringify(value).slice(0, 40), text.slice(0, 200)];
        trials += 1;
        expect([...said, fault]).toEqual([...said, undefined]);
        // Another branch of a union may take what this one does not.
        const isUnion = place.steps.some((step) => typeof step === "object" && "branch" in step);
        if (isAllowed || (isUnion && status < 300)) continue;
        // More than any body may hold is refused before it is known what it is.
        if (status === 400 && Array.isArray(value) && value.length > limits.jsonNodes) continue;
        // The whole path, or of a union what is above it.
        const named = status === 400 && isWithin(place, namedField(text));
        expect([...said, status, named]).toEqual([...said, 400, true]);
      }
    }
  }
  expect(trials).toBeGreaterThan(1_000);
});

function isWithin({ name }: Place, param: string): boolean {
  const [top = ""] = name.split(/[.[]/);
  const [given = ""] = param.split(/[.[]/);
  return top === given || name === "";
}

/** Texts that a prompt is made of: the model's context bounds them, and the body's bytes. */
const promptTexts =
  /^(?:messages\[0\]\.(?:reasoning_)?content.*|documents\[0\].*|prompt.*|input.*|instructions|system.*|query|text)$/;

/** Counted after the union that they are a branch of, where the error can say more. */
const countedInCode = new Set(["POST /v1/completions: array prompt"]);

test("nothing from outside is without a bound", () => {
  const unbounded = bodies().flatMap(({ label, schema }) =>
    placesOf(schema)
      .filter(({ name, type, schema: own }) => {
        if (type === "array") return own.maxItems === undefined;
        if (type === "string")
          return own.maxLength === undefined && own.pattern === undefined && !promptTexts.test(name);
        return type === "integer" && (own.minimum === undefined || own.maximum === undefined);
      })
      .map(({ name, type }) => `${label}: ${type} ${name}`),
  );
  expect(unbounded.filter((place) => !countedInCode.has(place))).toEqual([]);
});
