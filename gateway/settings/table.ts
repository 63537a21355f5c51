/**
 * The one table of settings. The environment is read by it, `spangate serve` takes its flags and their help from it, and
 * the table in docs/operations.md is written from it (test/settings holds that page to it).
 */
import { z } from "zod";
import { logLevels } from "../base/log.ts";
import { otherSettings, type Setting, workerSettings } from "./passed-settings.ts";
import {
  bucketAddress,
  byteSize,
  byteSizeOrAuto,
  corsOrigins,
  devices,
  folder,
  networks,
  onOrOff,
  publicUrl,
  serverUrl,
  wholeNumber,
} from "./values.ts";

const mib = 1024 * 1024;

/** Bounds that settings share with requests. */
export const settingLimits = {
  devices: 16,
  apiKeyChars: 256,
  /** Bytes that a quota or a pool may have. */
  bytes: 2 ** 42,
  /** Bytes that a bucket may have of this server. */
  bucketBytes: 2 ** 50,
} as const;

interface GatewaySetting extends Setting {
  readonly schema: z.ZodType;
}

/** What the gateway reads. Unset values are `undefined` or the schema's default. */
export const gatewaySettings = {
  SPANGATE_HOST: {
    schema: z.string().min(1).default("127.0.0.1"),
    value: "ADDRESS",
    byDefault: "`127.0.0.1`",
    meaning: "address to listen on",
  },
  SPANGATE_PORT: {
    schema: wholeNumber(0, 65_535).default(8080),
    value: "PORT",
    byDefault: "`8080`",
    meaning: "port to listen on; 0 takes a free one",
  },
  SPANGATE_DEV: {
    schema: onOrOff(),
    value: "0|1",
    byDefault: "0",
    meaning:
      "1: for trying it out on this machine: listens on loopback alone, and has a tenant `default` whose key lies in the data folder with one that administers the platform (until a start without it), where the command line finds them",
    isSwitch: true,
  },
  SPANGATE_DATA: {
    schema: folder().default(".spangate"),
    value: "DIR",
    byDefault: "`.spangate`",
    meaning: "database and uploaded files",
  },
  SPANGATE_ADMIN_KEY: {
    schema: z
      .string()
      .min(20, "must have at least 20 characters")
      .max(settingLimits.apiKeyChars, `must have at most ${settingLimits.apiKeyChars} characters`)
      .regex(/^[\x21-\x7e]+$/, "must be printable ASCII without spaces")
      .optional(),
    value: "KEY",
    byDefault: "made and printed once, when a worker is ready",
    meaning: "platform key of the first start; later starts warn when it is none",
    flag: false,
  },
  SPANGATE_TENANT_STORAGE_BYTES: {
    schema: byteSize(mib, settingLimits.bytes).optional(),
    value: "SIZE",
    byDefault: "what it leaves free on the disk",
    meaning: "what each tenant may store that has no `storage_bytes` of its own",
  },
  SPANGATE_TRACE_BYTES: {
    schema: byteSize(0, 1024 * mib).prefault("32MiB"),
    value: "SIZE",
    byDefault: "`32MiB`",
    meaning:
      "memory for the last requests of each tenant with what they took, without text ([traces](#traces)); 0 keeps none, and no statistics of the last day",
  },
  SPANGATE_DRAIN_SECONDS: {
    schema: wholeNumber(0, 3_600).default(10),
    value: "N",
    byDefault: "10",
    meaning: "how long what runs may go on after SIGTERM",
  },
  SPANGATE_MODEL: {
    schema: folder().optional(),
    value: "DIR|ORG/MODEL",
    byDefault: "the demo model",
    meaning:
      "a folder in the Hugging Face layout ([architectures](limits.md#models-and-devices)), or a model of the hub as in `Qwen/Qwen3-0.6B` or `Qwen/Qwen3-0.6B@REVISION`, which the first `serve` loads ([how](#models-of-the-hub))",
  },
  SPANGATE_MODEL_NAME: {
    schema: z.string().min(1).max(200, "must have at most 200 characters").optional(),
    value: "NAME",
    byDefault: "the folder's name",
    meaning:
      "its name in the API; a snapshot of the hub's cache (`models--org--name/snapshots/…`) is called `org/name`",
  },
  SPANGATE_EMBEDDING_MODEL: {
    schema: folder().optional(),
    value: "DIR",
    byDefault: "none",
    meaning: "a sentence-embedding model: a folder with `model.onnx`, `tokenizer.json` and `config.json`",
  },
  SPANGATE_RERANK_MODEL: {
    schema: folder().optional(),
    value: "DIR",
    byDefault: "none",
    meaning:
      "a cross-encoder that scores what a search finds once more: a folder with `model.onnx` (one logit), `tokenizer.json` and `config.json`",
  },
  SPANGATE_DEVICES: {
    schema: devices(settingLimits.devices),
    value: "LIST",
    byDefault: "`cpu`",
    meaning:
      "one worker each, as in `cpu,cpu`, or `cuda:0,cuda:1` (CUDA 12.4 or newer, compute capability 8.0 or newer)",
  },
  SPANGATE_THREADS: {
    schema: wholeNumber(1, 256).optional(),
    value: "N",
    byDefault: "cores / workers",
    meaning: "threads of each worker",
  },
  SPANGATE_WEIGHTS: {
    schema: z.enum(["float32", "int8"], { error: 'must be "float32" or "int8"' }).default("float32"),
    value: "TYPE",
    byDefault: "`float32`",
    meaning: "or `int8`: 8-bit weights, on the CPU alone; a GPU computes in bfloat16",
  },
  SPANGATE_KV_BYTES: {
    schema: byteSize(mib, settingLimits.bytes).optional(),
    value: "SIZE",
    byDefault: "1 GiB, or what the model leaves of the machine's memory; what is free on a GPU",
    meaning: "each worker's KV pool, as in `8GB` or `8GiB`; on the CPU, pages are taken as they are first used",
  },
  SPANGATE_KV_HOST_BYTES: {
    schema: byteSize(0, settingLimits.bytes).prefault("0"),
    value: "SIZE",
    byDefault: "`0`: none",
    meaning:
      "each worker's page-locked memory of the host for KV that its GPU's pool has no room for, taken at the start; for `cuda:N` alone",
  },
  SPANGATE_KV_DISK_BYTES: {
    schema: byteSizeOrAuto(0, settingLimits.bytes).prefault("auto"),
    value: "SIZE",
    byDefault: "`auto`",
    meaning:
      "files of KV that was prepared, pinned or used twice, sealed, which are there after a restart; what was used longest ago makes room; `auto`: a quarter of what is free; 0: none are kept, and those that were are removed. On a GPU it needs `SPANGATE_KV_HOST_BYTES`",
  },
  SPANGATE_KV_DISK_PATH: {
    schema: folder().optional(),
    value: "DIR",
    byDefault: "`kv` in the data folder",
    meaning: "where these files lie: a folder of this server alone",
  },
  SPANGATE_KV_S3: {
    schema: bucketAddress().optional(),
    value: "s3://BUCKET/PREFIX",
    byDefault: "none",
    meaning:
      "a bucket that gets a copy of each of these files, from where they come back when the folder has them no more ([how](#kv-in-a-bucket))",
  },
  SPANGATE_KV_S3_BYTES: {
    schema: byteSize(mib, settingLimits.bucketBytes).prefault("1TiB"),
    value: "SIZE",
    byDefault: "`1TiB`",
    meaning: "what is kept in the bucket; what was used longest ago makes room",
  },
  SPANGATE_KV_S3_ENDPOINT: {
    schema: serverUrl().optional(),
    value: "URL",
    byDefault: "Amazon's",
    meaning: "the bucket's server; any address, since the operator names it",
  },
  AWS_ACCESS_KEY_ID: {
    schema: z.string().optional(),
    value: "ID",
    byDefault: "none",
    meaning: "for `SPANGATE_KV_S3`, as the next three are; the server takes them out of its environment at once",
    flag: false,
  },
  AWS_SECRET_ACCESS_KEY: {
    schema: z.string().optional(),
    value: "KEY",
    byDefault: "none",
    meaning: "the key itself",
    flag: false,
  },
  AWS_SESSION_TOKEN: {
    schema: z.string().optional(),
    value: "TOKEN",
    byDefault: "none",
    meaning: "belongs to keys that end; then the server has to be started with new ones",
    flag: false,
  },
  AWS_REGION: {
    schema: z.string().optional(),
    value: "NAME",
    byDefault: "`us-east-1`",
    meaning: "the bucket's region",
    flag: false,
  },
  SPANGATE_MAX_RUNNING: {
    // The worker's own setting, and its default.
    schema: wholeNumber(1, 1_024).default(64),
    value: "N",
    byDefault: "64",
    meaning: "requests that a worker runs at the same time",
  },
  SPANGATE_QUERY_REDUCE_ARITY: {
    schema: wholeNumber(0, 1_024)
      .refine((arity) => arity !== 1, "must be 0 (off) or from 2 to 1024")
      .optional(),
    value: "N",
    byDefault: "off",
    meaning: "judges of span queries that say nothing about `reduce` become trees over so many fragments each",
  },
  SPANGATE_STRICT: {
    schema: onOrOff(),
    value: "0|1",
    byDefault: "0",
    meaning:
      "1: a field that nobody knows is an error on every route, as it is with a request's own header `x-spangate-strict: true`; else it is left out and named in `x-spangate-ignored`",
    isSwitch: true,
  },
  SPANGATE_CORS_ORIGINS: {
    schema: corsOrigins(),
    value: "LIST",
    byDefault: "none",
    meaning: "origins whose pages may call this server from a browser, with commas between, or `*`",
  },
  SPANGATE_PUBLIC_URL: {
    schema: publicUrl().optional(),
    value: "URL",
    byDefault: "none",
    meaning:
      "where browsers find this server behind a proxy with TLS, as in `https://spangate.example.com`: the [console](console.md) signs in there, else at a loopback address alone",
  },
  SPANGATE_SOURCE_NETWORKS: {
    schema: networks(),
    value: "LIST",
    byDefault: "none",
    meaning:
      "networks that stored sources may be read from beside the public internet, such as an intranet's, as in `10.1.0.0/16,fd00:1::/32`",
  },
  SPANGATE_LOG: {
    schema: z.enum(logLevels, { error: `must be one of ${logLevels.join(", ")}` }).default("info"),
    value: "LEVEL",
    byDefault: "`info`",
    meaning: "`debug`, `info` (a line a request), `warn`, `error`, `silent`; JSON lines on standard error",
  },
} as const satisfies Readonly<Record<string, GatewaySetting>>;

/** Every setting, in the order of the docs' table. */
export const settings: readonly (readonly [variable: string, setting: Setting])[] = Object.entries<Setting>({
  ...gatewaySettings,
  ...workerSettings,
  ...otherSettings,
});

/** `kv-bytes` of `SPANGATE_KV_BYTES`. */
export const flagOf = (variable: string): string =>
  variable
    .replace(/^SPANGATE_/, "")
    .toLowerCase()
    .replaceAll("_", "-");

/** The settings for which `spangate serve` has flags. */
export const flaggedSettings = settings.filter(([, setting]) => setting.flag !== false);

/** The table of docs/operations.md. */
export function settingsMarkdown(): string {
  const rows = settings.map(
    ([variable, { flag, byDefault, meaning }]) =>
      `| \`${variable}\` | ${flag === false ? "" : `\`--${flagOf(variable)}\``} | ${byDefault} | ${meaning} |`,
  );
  return ["| variable | flag of `serve` | default | meaning |", "| --- | --- | --- | --- |", ...rows].join("\n");
}

/** A setting's meaning for a terminal: without links and back-quotes. */
export const plainText = (markdown: string): string =>
  markdown.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replaceAll("`", "");
