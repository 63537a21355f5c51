/** The gateway's configuration: environment -> one frozen object. Every limit has its name here, once. */
import { availableParallelism } from "node:os";
import { resolve } from "node:path";
import { z } from "zod";
import { demoModelFolder } from "../places/places.ts";
import { limits as contractLimits } from "../worker/contract/limits.ts";
import type { logLevels } from "./base/log.ts";
import { gatewaySettings, settingLimits } from "./settings/table.ts";

const kib = 1024;
const mib = 1024 * kib;

/** Bounds on what comes from outside. */
export const limits = {
  /** Bytes of a JSON body. A prompt of 131,072 tokens is well under 4 MiB of text. */
  bodyBytes: 8 * mib,
  /** Bytes that Bun takes before it answers by itself, without our error shape; each route's own bound is far below. */
  serverBodyBytes: 256 * mib,
  /** A socket that is silent this long while its request is still to come is closed. */
  socketIdleS: 30,
  /** What a whole answer may take to go out. Bun counts from when it was given to it, however fast it is read. */
  answerSendS: 120,
  /** Bodies in memory: of all tenants, of one, of each beside what all share; bodies of a tenant that are read at once. */
  bodyMemoryBytes: 128 * mib,
  bodyMemoryTenantBytes: 32 * mib,
  bodyMemoryReserveBytes: 2 * mib,
  bodiesPerTenant: 256,
  /** What one request may work on: bytes of JSON, rows of the database. */
  requestParsedBytes: 64 * mib,
  requestRows: 20_000,
  /** Spans and tokens of one prepare plan: small enough to show progress, large enough to fill the worker's steps. */
  prepareSpans: 16,
  prepareTokens: 4_096,
  /** Braces and brackets within each other. */
  jsonDepth: 32,
  /** What a body may take to arrive: so long, and longer while it comes at this rate at least. */
  bodyReadMs: 30_000,
  bodyBytesPerMs: 32,
  /** Commas in a body: JSON of many small values costs far more than its bytes. */
  jsonCommas: 500_000,
  /** Strings, lists and objects in a body, and in one of many messages to be made. */
  jsonNodes: 100_000,
  batchJsonNodes: 500_000,
  /** Fields of one object in a body. */
  jsonFields: 2_048,
  messages: 1_024,
  contentParts: 256,
  documents: 512,
  /** Files of one prompt. */
  promptFiles: 16,
  documentIdChars: 128,
  titleChars: 512,
  /** The least that a row of sparse decoding may choose. */
  leastSparseTokens: 16,
  /** Where a search result comes from: a URL, mostly. */
  sourceChars: 2_048,
  stopStrings: 16,
  stopChars: 256,
  logitBiases: 1_024,
  completionChoices: 32,
  /** A larger top_k keeps every token of any vocabulary, like this one. */
  topK: 2 ** 20,
  retrievedFragments: 50,
  vectorStoresPerSearch: 16,
  shortStringChars: 512,
  metadataEntries: 16,
  /** Stored responses: the newest of a tenant and how many bytes they have, what is kept of one request, for how long. */
  storedResponses: { rows: 1_000, bytes: 256 * mib, requestBytes: 2 * mib, keepMs: 30 * 86_400_000 },
  /** What a request may take altogether, and how long it may wait for a reader of its stream. */
  requestMs: 600_000,
  streamStallMs: 30_000,
  /** Bun cuts a silent stream; well below common proxies' limits too. */
  streamPingMs: 5_000,
  /** Bytes that wait in us for a slow reader. */
  streamBufferBytes: 64 * kib,
  requestsPerTenant: 256,
  /** Requests of a tenant whose traces are kept. */
  tracesPerTenant: 256,
  /** Highest limits that may be set for a tenant or a key; tenants and keys whose spending is remembered. */
  limitRequestsPerMinute: 1_000_000,
  limitTokensPerMinute: 10_000_000_000,
  limitConcurrency: 100_000,
  limitBytes: settingLimits.bytes,
  /** Highest budgets of tokens, of a day and of a month. */
  limitTokensPerPeriod: 1_000_000_000_000_000,
  limitedOwners: 65_536,
  /** Uploads that are taken in at the same time, each with a file open. */
  uploadsPerTenant: 8,
  /** Each has a file open while its client reads. */
  downloadsPerTenant: 64,
  /** Streams of job events. */
  jobStreamsPerTenant: 64,
  /** Queries of one bulk request, what they may be sent in, and how many run at the same time (if not asked for, at most). */
  bulkLines: 10_000,
  bulkBodyBytes: 16 * mib,
  bulkIdChars: 128,
  bulkConcurrency: 8,
  maxBulkConcurrency: 64,
  bulksPerTenant: 2,
  /** Results that can still be asked for after they were sent. */
  bulkResultTenants: 32,
  bulkRecordsPerTenant: 64,
  bulkResultBytesPerTenant: 16 * mib,
  bulkKeepMs: 3_600_000,
  /** Bytes of a span query. */
  queryBodyBytes: 8 * mib,
  /** What `max_tokens: 0` of a query's generate stands for. */
  queryDefaultTokens: 1_024,
  /** Requests of one query that are at the workers at the same time. */
  queryConcurrency: 64,
  /** A document that comes with a query: its characters, tokens of a part, parts that are read. */
  augmentChars: mib,
  augmentPartTokens: 256,
  augmentParts: 8,
  /** What an explanation shows: steps, runs of all plans together, characters of one printed node. */
  explainSteps: 200,
  explainRuns: 4_096,
  explainNodeChars: 4_096,
  /** Requests that wait for a worker, and tokens of their prompts; a tenant may have a quarter of each. */
  waitingRequests: 8_192,
  waitingTokens: 2 ** 25,
  /** How often a request is given to a worker, and how many deaths that left no worker it lives through, with its waits. */
  attempts: 3,
  deaths: 8,
  abortGraceMs: 2_000,
  flushMs: 500,
  workerStopMs: 3_000,
  /** How long `/ready` waits for KV and texts that a start reads ahead. */
  warmUpMs: 1_000,
  /** The wait before a worker is started again. It doubles while workers fall within `workerStableMs`; requests wait with it. */
  restartMinMs: 100,
  restartMaxMs: 2_000,
  workerStableMs: 5_000,
  heartbeatMs: 1_000,
  workerHangMs: 60_000,
  /** Remembered texts with their tokens: encoded ones, those of span queries with their keys, and spans. */
  encodedCacheBytes: 8 * mib,
  spanCacheBytes: 32 * mib,
  /** Corpora whose owner is remembered from their last use. */
  corpusOwners: 65_536,
  /** Corpora whose home among the workers is remembered. */
  corpusHomes: 65_536,
  /** Spans whose uses are counted. */
  usedSpans: 65_536,
  /** Blocks that are gone and texts of prompts that are remembered, to tell why KV was not found. */
  goneBlocks: 32_768,
  notedTexts: 16_384,
  /** Keys in the changes of KV that are kept for who comes back, and of one event; streams of them. */
  kvFeedKeys: 65_536,
  kvFeedKeysPerEvent: 512,
  kvFeedStreams: 16,
  /** Changes of tenants' KV by the second that are kept for who comes; streams of them, of a tenant and of operators. */
  cacheChanges: 16_384,
  cacheEventStreams: 16,
  /** Turns of prompts that later ones may be compared with. */
  comparedTurns: 65_536,
  apiKeyChars: settingLimits.apiKeyChars,
  /** Sessions of the console: how long one lasts, also without use; of one key, and of all; links that sign in once. */
  sessionMs: 12 * 3_600_000,
  sessionIdleMs: 3_600_000,
  sessionsPerKey: 32,
  sessions: 16_384,
  signInLinks: 64,
  /** Sign-ins that fail, of one address in a minute; addresses that are remembered for it. */
  signInFailures: 10,
  signInAddresses: 4_096,
  /** How long an API key may be valid that expires: ten years. */
  keySeconds: 315_360_000,
  /** Texts of one embeddings or rerank request, and their tokens (a token of text is a character at least). */
  embeddingInputs: 2_048,
  embeddingTokens: 300_000,
  embeddingTextChars: 131_072,
  /** What the embedder may take for one run of texts; then it is started again. */
  embedMs: 60_000,
  /** Token sequences that wait for the embedder. */
  embeddingQueue: 8_192,
  rerankDocuments: 1_024,
  /** A message of an MCP client: a question beside little else; and the longest answer to one. */
  mcpBodyBytes: 256 * kib,
  mcpAnswerTokens: 8_192,
} as const;

const relations: readonly (readonly [boolean, string])[] = [
  [limits.bodyBytes <= limits.serverBodyBytes, "a JSON body fits into what the server takes"],
  [limits.bulkBodyBytes <= limits.serverBodyBytes, "a bulk body fits into what the server takes"],
  [limits.bulksPerTenant <= limits.bulkRecordsPerTenant, "a bulk request that runs can be looked at"],
  [limits.queryBodyBytes <= limits.serverBodyBytes, "a query fits into what the server takes"],
  [limits.queryConcurrency * 4 <= limits.waitingRequests, "one query does not fill its tenant's part of the queue"],
  [contractLimits.maxRequestTokens * 4 <= limits.waitingTokens, "any prompt fits into its tenant's part of the queue"],
  [limits.queryDefaultTokens <= contractLimits.maxRequestTokens, "a default completion is one that a worker takes"],
  [limits.streamPingMs * 2 <= limits.streamStallMs, "a stream is pinged before it counts as stalled"],
  [limits.documents + 2 <= contractLimits.maxRuns, "a span each and the main runs fit into a plan"],
  [limits.documents + 2 <= contractLimits.maxSegmentsPerRun, "the last run can see every span"],
  [limits.restartMinMs <= limits.restartMaxMs, "the back-off grows"],
  [limits.heartbeatMs * 2 <= limits.workerHangMs, "a worker is asked more than once before it counts as hung"],
  [limits.requestMs > limits.abortGraceMs, "an abort fits into a request"],
];
for (const [holds, sentence] of relations) if (!holds) throw new Error(`limits contradict each other: ${sentence}`);

export interface Config {
  readonly host: string;
  /** 0: any free port. */
  readonly port: number;
  readonly dataDir: string;
  readonly modelDir: string;
  readonly modelName: string | undefined;
  /** Folder of a sentence-embedding model in ONNX; undefined: the model's own token embeddings. */
  readonly embeddingModelDir: string | undefined;
  /** Folder of a cross-encoder in ONNX; undefined: what a search finds is scored once. */
  readonly rerankModelDir: string | undefined;
  /** One worker for each. */
  readonly devices: readonly string[];
  /** Bytes of each worker's KV pool; undefined: the worker's default. */
  readonly kvBytes: number | undefined;
  /** Bytes of the host's memory that each worker keeps KV in beside its GPU; 0: none. */
  readonly kvHostBytes: number;
  /** Bytes of KV in files; 0: none; undefined: a part of what is free. */
  readonly kvDiskBytes: number | undefined;
  readonly kvDiskPath: string;
  /** Where copies of these files go; undefined: nowhere. */
  readonly kvBucket: KvBucketConfig | undefined;
  /** What each tenant may store that has no limit of its own; undefined: as much as it leaves free on the disk. */
  readonly tenantStorageBytes: number | undefined;
  readonly weights: "float32" | "int8";
  /** Requests that each worker runs at the same time. */
  readonly maxRunning: number;
  /** Threads of each worker. */
  readonly threadCount: number;
  /** What runs when the server is told to stop may go on so long. */
  readonly drainMs: number;
  /** Memory for traces of the last requests; 0: none are kept. */
  readonly traceBytes: number;
  /** Arity of the trees that wide judges become; undefined: they stay as they are. */
  readonly queryReduceArity: number | undefined;
  readonly adminKey: string | undefined;
  /** A server to try things out with: one tenant is there, and the command line finds its key. */
  readonly dev: boolean;
  /** Fields of bodies that nobody knows are errors; else they are left out and named in the answer's header. */
  readonly strict: boolean;
  /** Origins whose pages may call this server from a browser. */
  readonly corsOrigins: readonly string[];
  /** Where browsers find this server, as a proxy with TLS has it; undefined: the console signs in at loopback alone. */
  readonly publicUrl: string | undefined;
  /** Networks that stored sources may be read from beside the public internet, in CIDR notation. */
  readonly sourceNetworks: readonly string[];
  readonly logLevel: (typeof logLevels)[number];
}

export interface KvBucketConfig {
  readonly bucket: string;
  /** Empty, or ends with a slash. */
  readonly prefix: string;
  readonly mostBytes: number;
  readonly access: {
    readonly endpoint?: string | undefined;
    readonly region?: string | undefined;
    readonly accessKeyId: string;
    readonly secretAccessKey: string;
    readonly sessionToken?: string | undefined;
  };
}

type Shape = { readonly [Name in keyof typeof gatewaySettings]: (typeof gatewaySettings)[Name]["schema"] };
const shape = Object.fromEntries(Object.entries(gatewaySettings).map(([name, { schema }]) => [name, schema])) as Shape;
const schema = z.object(shape);

/** A setting that cannot be what it is. */
export class SettingError extends Error {
  /** The environment's variable. */
  readonly variable: string;
  /** What is wrong, as it stands after the setting's name. */
  readonly problem: string;

  constructor(variable: string, problem: string) {
    super(`${variable} ${problem}`);
    this.variable = variable;
    this.problem = problem;
  }
}

/**
 * @param env the process's environment; an empty variable counts as unset
 * @throws SettingError naming the variable and what is wrong with it
 */
export function parseConfig(env: Readonly<Record<string, string | undefined>>): Config {
  const given = Object.fromEntries(Object.entries(env).filter(([, value]) => value !== undefined && value !== ""));
  const parsed = schema.safeParse(given);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new SettingError(String(issue?.path[0]), issue?.message ?? "is not as expected");
  }
  const values = parsed.data;
  if (values.SPANGATE_DEV && !/^(?:127(?:\.\d+){3}|::1|localhost)$/.test(values.SPANGATE_HOST)) {
    throw new SettingError("SPANGATE_HOST", `must be 127.0.0.1, ::1 or localhost with SPANGATE_DEV (--dev)`);
  }
  return Object.freeze({
    host: values.SPANGATE_HOST,
    port: values.SPANGATE_PORT,
    dataDir: resolve(values.SPANGATE_DATA),
    modelDir: values.SPANGATE_MODEL ?? demoModelFolder,
    modelName: values.SPANGATE_MODEL_NAME,
    embeddingModelDir: values.SPANGATE_EMBEDDING_MODEL,
    rerankModelDir: values.SPANGATE_RERANK_MODEL,
    devices: values.SPANGATE_DEVICES,
    kvBytes: values.SPANGATE_KV_BYTES,
    kvHostBytes: values.SPANGATE_KV_HOST_BYTES,
    kvDiskBytes: values.SPANGATE_KV_DISK_BYTES,
    kvDiskPath: values.SPANGATE_KV_DISK_PATH ?? resolve(values.SPANGATE_DATA, "kv"),
    kvBucket: kvBucketOf(values),
    tenantStorageBytes: values.SPANGATE_TENANT_STORAGE_BYTES,
    weights: values.SPANGATE_WEIGHTS,
    maxRunning: values.SPANGATE_MAX_RUNNING,
    threadCount:
      values.SPANGATE_THREADS ?? Math.max(1, Math.floor(availableParallelism() / values.SPANGATE_DEVICES.length)),
    traceBytes: values.SPANGATE_TRACE_BYTES,
    drainMs: values.SPANGATE_DRAIN_SECONDS * 1_000,
    // 0 is off, as unset is.
    queryReduceArity: values.SPANGATE_QUERY_REDUCE_ARITY || undefined,
    adminKey: values.SPANGATE_ADMIN_KEY,
    dev: values.SPANGATE_DEV,
    strict: values.SPANGATE_STRICT,
    corsOrigins: values.SPANGATE_CORS_ORIGINS,
    publicUrl: values.SPANGATE_PUBLIC_URL,
    sourceNetworks: values.SPANGATE_SOURCE_NETWORKS,
    logLevel: values.SPANGATE_LOG,
  });
}

/** @throws SettingError */
function kvBucketOf(values: z.infer<typeof schema>): KvBucketConfig | undefined {
  const { SPANGATE_KV_S3: address, AWS_ACCESS_KEY_ID: accessKeyId, AWS_SECRET_ACCESS_KEY: secretAccessKey } = values;
  if (address === undefined) return undefined;
  if (values.SPANGATE_KV_DISK_BYTES === 0) {
    throw new SettingError(
      "SPANGATE_KV_DISK_BYTES",
      "must not be 0 with SPANGATE_KV_S3: the bucket has copies of files",
    );
  }
  const forBucket = "must be set with SPANGATE_KV_S3";
  if (accessKeyId === undefined) throw new SettingError("AWS_ACCESS_KEY_ID", forBucket);
  if (secretAccessKey === undefined) throw new SettingError("AWS_SECRET_ACCESS_KEY", forBucket);
  // Other programs read these too, so they are looked at here alone.
  for (const name of ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"] as const) {
    if (/^[\x21-\x7e]{1,8192}$/.test(values[name] ?? "unset")) continue;
    throw new SettingError(name, "must be printable ASCII without spaces, of at most 8192 characters");
  }
  const { SPANGATE_KV_S3_ENDPOINT: endpoint, AWS_REGION: region, AWS_SESSION_TOKEN: sessionToken } = values;
  const access = { endpoint, region, accessKeyId, secretAccessKey, sessionToken };
  return { ...address, mostBytes: values.SPANGATE_KV_S3_BYTES, access };
}
