/** Checks single values that clients sent. Each check refuses a wrong value with its path. */
import { QueryError, type QueryErrorCode } from "./errors.ts";

export type Fields = Readonly<Record<string, unknown>>;

export interface Range {
  readonly min: number;
  readonly max: number;
}

export function refuse(path: string, reason: string, code: QueryErrorCode = "invalid_value"): never {
  throw new QueryError(code, path, reason);
}

/** A step of a path: `.name`, or `["a name"]` for a name with other characters. */
export function step(key: string): string {
  return /^[A-Za-z_]\w{0,63}$/.test(key) ? `.${key}` : `[${JSON.stringify(key.slice(0, 64))}]`;
}

export function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A short description of the value that was sent, for an error message. */
export function describe(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "a list";
  if (typeof value === "object") return "an object";
  if (typeof value !== "string") return String(value);
  return value.length <= 32 ? `the string ${JSON.stringify(value)}` : "a string";
}

export interface FieldNames {
  readonly known: ReadonlySet<string>;
  /** Fields that other servers know and that this one does not support. */
  readonly unsupported?: ReadonlySet<string>;
}

/** An object that has no fields but the known ones. */
export function fieldsOf(value: unknown, path: string, { known, unsupported }: FieldNames): Fields {
  if (!isObject(value)) return refuse(path, `must be an object, not ${describe(value)}`);
  for (const key of Object.keys(value)) {
    if (known.has(key)) continue;
    if (unsupported?.has(key)) refuse(path + step(key), "is not supported by this server", "unsupported_field");
    refuse(path + step(key), "is unknown", "unknown_field");
  }
  return value;
}

/** A field that must be there. */
export function required(fields: Fields, name: string, path: string): unknown {
  const value = fields[name];
  if (value === undefined) refuse(path + step(name), "is missing", "missing_field");
  return value;
}

/** A field that may be absent or null, which clients send for "not set". */
export function optional<Value>(
  fields: Fields,
  name: string,
  path: string,
  check: (value: unknown, path: string) => Value,
): Value | undefined {
  const value = fields[name];
  return value === undefined || value === null ? undefined : check(value, path + step(name));
}

export function stringOf(value: unknown, path: string, range: Range): string {
  if (typeof value !== "string") return refuse(path, `must be a string, not ${describe(value)}`);
  if (value.length < range.min) refuse(path, "must not be empty");
  if (value.length > range.max) refuse(path, `must have at most ${range.max} characters, not ${value.length}`);
  if (!value.isWellFormed()) refuse(path, "has half of a surrogate pair");
  return value;
}

export function listOf(value: unknown, path: string, range: Range): readonly unknown[] {
  if (!Array.isArray(value)) return refuse(path, `must be a list, not ${describe(value)}`);
  if (value.length < range.min)
    refuse(path, `must have at least ${range.min} ${range.min === 1 ? "entry" : "entries"}`);
  if (value.length > range.max) refuse(path, `must have at most ${range.max} entries, not ${value.length}`);
  return value;
}

export function integerOf(value: unknown, path: string, { min, max }: Range): number {
  const isWithin = typeof value === "number" && Number.isInteger(value) && value >= min && value <= max;
  // Adding 0 turns -0 into 0, so that equal numbers print and compare as one.
  if (isWithin) return value + 0;
  return refuse(path, `must be a whole number from ${min} to ${max}, not ${describe(value)}`);
}

export function numberOf(value: unknown, path: string, { min, max }: Range): number {
  if (typeof value === "number" && value >= min && value <= max) return value + 0;
  return refuse(path, `must be a number from ${min} to ${max}, not ${describe(value)}`);
}

export function booleanOf(value: unknown, path: string): boolean {
  return typeof value === "boolean" ? value : refuse(path, `must be true or false, not ${describe(value)}`);
}

export function oneOf<Choice extends string>(value: unknown, path: string, choices: readonly Choice[]): Choice {
  const found = choices.find((choice) => choice === value);
  const quoted = choices.map((choice) => `"${choice}"`).join(" or ");
  return found ?? refuse(path, `must be ${quoted}, not ${describe(value)}`);
}
