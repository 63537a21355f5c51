/** Settings that are secrets: they may come from a file, and do not stay where others of the same user can read them. */
import { readFileSync } from "node:fs";

type Environment = Readonly<Record<string, string | undefined>>;

const adminKey = "SPANGATE_ADMIN_KEY";
/** Path of a file that holds the key, in place of the key itself. */
export const adminKeyFile = "SPANGATE_ADMIN_KEY_FILE";

export const secretSettings: readonly string[] = [
  adminKey,
  "SPANGATE_API_KEY",
  "OTEL_EXPORTER_OTLP_HEADERS",
  "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
];

/**
 * The environment, with the secrets that stand in files.
 * @throws Error naming the variable and what is wrong with it
 */
export function withSecrets(env: Environment): Environment {
  const path = env[adminKeyFile];
  if (path === undefined || path === "") return { ...env };
  if (env[adminKey]) throw new Error(`${adminKeyFile} and ${adminKey} are both set: one of them is enough`);
  try {
    return { ...env, [adminKey]: readFileSync(path, "utf8").trim() };
  } catch (cause) {
    throw new Error(`${adminKeyFile}: the file cannot be read`, { cause });
  }
}
