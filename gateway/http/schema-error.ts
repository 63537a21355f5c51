/** What a schema found wrong, as the error that the client gets. */
import type { z } from "zod";
import { ApiError } from "../errors.ts";

/** The first issue as the client's error, with the field's path as `param`. */
export function schemaError(error: z.ZodError, unsupported: ReadonlySet<string> = new Set()): ApiError {
  const issue = deepest(error.issues[0]);
  const path = paramOf(issue?.path ?? []);
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
  const best = branches.sort((a, b) => b.path.length - a.path.length)[0];
  if (best === undefined || best.path.length === 0) return issue;
  return { ...best, path: [...issue.path, ...best.path] };
}

const maxParamChars = 256;

/** messages[0].content; cut where a caller's own key makes it very long. */
export function paramOf(path: readonly PropertyKey[]): string {
  const whole = path.reduce<string>((text, part) => {
    if (typeof part === "number") return `${text}[${part}]`;
    return text === "" ? String(part) : `${text}.${String(part)}`;
  }, "");
  return whole.slice(0, maxParamChars);
}
