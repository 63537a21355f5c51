/** Names and strings that no JSON body may hold, wherever in it they are. */
import { ApiError } from "../../base/errors.ts";
import { paramOf } from "./schema-check.ts";

/**
 * Refuses fields called `__proto__`, at any depth, since schemas drop this name silently. No name or string
 * has half of a surrogate pair: it has no UTF-8, so two such strings would be one wherever they are hashed or stored.
 * Looks at the value and not at its text, where an escape may stand for any letter.
 * @param within path of the value in the body
 * @throws ApiError unknown_field, invalid_value
 */
export function refuseBadStrings(value: unknown, within: readonly PropertyKey[] = []): void {
  const found = badPath(value);
  if (found === undefined) return;
  const path = [...within, ...found];
  const param = paramOf(path).toWellFormed();
  if (path.at(-1) === "__proto__") throw new ApiError("unknown_field", { message: `Unknown field '${param}'.`, param });
  const where = param === "" ? "The body" : `'${param}'`;
  throw new ApiError("invalid_value", {
    message: `${where} has half of a surrogate pair.`,
    ...(param === "" ? {} : { param }),
  });
}

/** Path of the first that is bad; made only where it is found, since there may be half a million values. */
function badPath(value: unknown): readonly PropertyKey[] | undefined {
  if (typeof value === "string") return value.isWellFormed() ? undefined : [];
  if (typeof value !== "object" || value === null) return undefined;
  if (Array.isArray(value)) {
    for (let index = 0; index < value.length; index++) {
      const inner = badPath(value[index]);
      if (inner !== undefined) return [index, ...inner];
    }
    return undefined;
  }
  for (const name of Object.keys(value)) {
    if (name === "__proto__" || !name.isWellFormed()) return [name];
    const inner = badPath((value as Readonly<Record<string, unknown>>)[name]);
    if (inner !== undefined) return [name, ...inner];
  }
  return undefined;
}
