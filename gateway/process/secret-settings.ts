/**
 * Settings that are secrets. They may be read from a file, and they are not left where other processes of the same user
 * can read them.
 */
import { readFileSync } from "node:fs";
import { adminKeyFile } from "../settings/passed-settings.ts";

type Environment = Readonly<Record<string, string | undefined>>;

const adminKey = "SPANGATE_ADMIN_KEY";

export const secretSettings: readonly string[] = [
  adminKey,
  "SPANGATE_API_KEY",
  "AWS_ACCESS_KEY_ID",
  "AWS_SECRET_ACCESS_KEY",
  "AWS_SESSION_TOKEN",
  "HF_TOKEN",
  "HUGGING_FACE_HUB_TOKEN",
  "OTEL_EXPORTER_OTLP_HEADERS",
  "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
];

/**
 * The environment, with secrets that are given as files read from those files.
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
