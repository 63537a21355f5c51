/**
 * Checks values from outside against their schema, and turns what is wrong into the error that the client gets. Fields
 * that nobody here knows may be left out instead: clients of other servers send hints and notes of their own with every
 * request. They are named in the answer's header `x-spangate-ignored`.
 */
import type { z } from "zod";
import { ApiError } from "../../base/errors.ts";
import { yieldToOthers } from "../../base/pace.ts";

/**
 * Parsing ends at the first fault, which is all that is told: a body can have a hundred thousand, and an issue for each
 * would take a second and as many megabytes. A test holds zod to it.
 */
const firstFaultOnly: z.core.ParseContextInternal<z.core.$ZodIssue> = { abortEarly: true };

/**
 * @param at where the value stands in the body
 * @throws ApiError 400 with `param` naming the first field that is wrong
 */
export function checked<Schema extends z.ZodType>(
  schema: Schema,
  value: unknown,
  unsupported: ReadonlySet<string> = new Set(),
  at: readonly PropertyKey[] = [],
): z.infer<Schema> {
  const result = parsed(schema, value);
  if (!result.success) throw schemaError(result.error, unsupported, at);
  return result.data;
}

/** What the schema makes of the value, or its first fault. */
const parsed = <Schema extends z.ZodType>(schema: Schema, value: unknown): z.ZodSafeParseResult<z.infer<Schema>> =>
  schema.safeParse(value, firstFaultOnly);

/** Fields that the schema does not know, of the first object that has any; undefined when another fault was met first. */
function unknownFields(
  error: z.ZodError,
): { readonly path: readonly PropertyKey[]; readonly keys: readonly string[] } | undefined {
  const issue = deepest(error.issues[0]);
  return issue?.code === "unrecognized_keys" ? { path: issue.path, keys: issue.keys } : undefined;
}

/** The first issue as the client's error, with the field's path as `param`. */
function schemaError(
  error: z.ZodError,
  unsupported: ReadonlySet<string> = new Set(),
  at: readonly PropertyKey[] = [],
): ApiError {
  const issue = deepest(error.issues[0]);
  const path = paramOf([...at, ...(issue?.path ?? [])]);
  if (issue?.code === "unrecognized_keys") {
    const [key = ""] = issue.keys;
    const param = path === "" ? key.slice(0, 64) : `${path}.${key.slice(0, 64)}`;
    if (unsupported.has(key)) return unsupportedField(param);
    return new ApiError("unknown_field", { message: `Unknown field '${param}'.`, param });
  }
  if (path !== "" && unsupported.has(path)) return unsupportedField(path);
  const missing =
    issue?.code === "invalid_type" && issue.input === undefined && /received undefined/.test(issue.message);
  if (missing) return new ApiError("missing_field", { message: `'${path}' is missing.`, param: path });
  const where = path === "" ? "The body" : `'${path}'`;
  return new ApiError("invalid_value", {
    message: `${where}: ${issue?.message ?? "not valid"}.`,
    ...(path === "" ? {} : { param: path }),
  });
}

function unsupportedField(param: string): ApiError {
  return new ApiError("unsupported_field", { message: `'${param}' is not supported by this server.`, param });
}

type Issue = z.core.$ZodIssue;

/** A union's issue says only "invalid input"; the branch that got furthest, with the fewest faults, says what is wrong. */
function deepest(issue: Issue | undefined): Issue | undefined {
  if (issue?.code !== "invalid_union") return issue;
  const byFaults = issue.errors.toSorted((a, b) => a.length - b.length);
  const branches = byFaults.map((branch) => deepest(branch[0])).filter((found) => found !== undefined);
  const best = branches.sort((a, b) => b.path.length - a.path.length || nearness(b) - nearness(a))[0];
  if (best === undefined || best.path.length === 0) return issue;
  return { ...best, path: [...issue.path, ...best.path] };
}

/** 1: the field is there, and none that tells branches apart by its value, so the branch may be the one that was meant. */
const nearness = ({ code, message }: Issue): number =>
  code === "invalid_value" || /received undefined/.test(message) ? 0 : 1;

const maxParamChars = 256;

/** messages[0].content; cut where a caller's own key makes it very long. */
export function paramOf(path: readonly PropertyKey[]): string {
  const whole = path.reduce<string>((text, part) => {
    if (typeof part === "number") return `${text}[${part}]`;
    return text === "" ? String(part) : `${text}.${String(part)}`;
  }, "");
  return whole.slice(0, maxParamChars);
}

/** A body is checked at most so many times, each time without the unknown fields that the last check met. */
const maxChecks = 5;
const maxNamed = 32;

export interface Tolerated<Value> {
  readonly value: Value;
  /** Paths of what was left out, with [] for any place in a list. */
  readonly ignored: readonly string[];
}

/**
 * @param unsupported fields that stay an error
 * @throws ApiError 400 with `param` naming the first field that is wrong
 */
export async function tolerantly<Schema extends z.ZodType>(
  schema: Schema,
  value: unknown,
  unsupported: ReadonlySet<string> = new Set(),
): Promise<Tolerated<z.infer<Schema>>> {
  const ignored = new Set<string>();
  for (let checks = 1; ; checks += 1) {
    const result = parsed(schema, value);
    if (result.success) return { value: result.data, ignored: [...ignored] };
    const unknown = unknownFields(result.error);
    if (unknown === undefined || checks === maxChecks || isNeeded(unknown, unsupported)) {
      throw schemaError(result.error, unsupported);
    }
    const places = alike(value, unknown.path);
    for (const key of unknown.keys) {
      // Null says that nothing is set, so that nothing is lost.
      const isSet = places.some((place) => place[key] != null);
      if (isSet && ignored.size < maxNamed) ignored.add(pattern([...unknown.path, key]));
      for (const place of places) Reflect.deleteProperty(place, key);
    }
    await yieldToOthers();
  }
}

/** What would change the answer, and what says how this server is to work, must be understood. */
const isNeeded = ({ path, keys }: NonNullable<ReturnType<typeof unknownFields>>, unsupported: ReadonlySet<string>) =>
  path[0] === "spangate" || keys.some((key) => unsupported.has(key));

type Fields = Record<string, unknown>;

const isFields = (value: unknown): value is Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * The object at `path`, and those that stand at its place in other items of the same lists and are of its kind, as other
 * messages of the same role are: what one does not know, all do not.
 */
function alike(value: unknown, path: readonly PropertyKey[]): Fields[] {
  const at = path.reduce<unknown>((within, step) => (within as Record<PropertyKey, unknown>)[step], value);
  if (!isFields(at)) return [];
  let places: unknown[] = [value];
  for (const step of path) {
    places = places.flatMap((place): unknown[] => {
      if (typeof step === "number") return Array.isArray(place) ? place : [];
      return isFields(place) ? [place[step as string]] : [];
    });
  }
  return places.filter((place): place is Fields => isFields(place) && place.role === at.role && place.type === at.type);
}

/** messages[].name; a caller's own key is cut, and has no sign that a header cannot hold. */
function pattern(path: readonly PropertyKey[]): string {
  const text = path.reduce<string>((whole, step) => {
    if (typeof step === "number") return `${whole}[]`;
    return whole === "" ? String(step) : `${whole}.${String(step)}`;
  }, "");
  return text.replace(/[^\w.[\]-]/g, "?").slice(0, 96);
}
