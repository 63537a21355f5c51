/** Checks values from outside against their schema, and turns what is wrong into the error that the client gets. */
import type { z } from "zod";
import { ApiError } from "../../base/errors.ts";

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
  const result = schema.safeParse(value, firstFaultOnly);
  if (!result.success) throw schemaError(result.error, unsupported, at);
  return result.data;
}

/** The first issue as the client's error, with the field's path as `param`. */
function schemaError(error: z.ZodError, unsupported: ReadonlySet<string>, at: readonly PropertyKey[]): ApiError {
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
