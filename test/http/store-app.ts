/** The store's routes over a small world, for tests that call `app.request`. */
import type { Hono } from "hono";
import { DbError } from "../../db/errors.ts";
import { ApiError } from "../../gateway/base/errors.ts";
import { openRecords } from "../../gateway/compose/records.ts";
import { addGrantRoutes } from "../../gateway/http/admin/grants.ts";
import { addPrepareRoutes } from "../../gateway/http/admin/prepare.ts";
import { addSourceRoutes } from "../../gateway/http/admin/sources.ts";
import { addLimitRoutes } from "../../gateway/http/admin/tenant-limits.ts";
import { addTenantRoutes } from "../../gateway/http/admin/tenants.ts";
import { createApp } from "../../gateway/http/app.ts";
import { ConcurrencyLimiter } from "../../gateway/http/middleware/concurrency.ts";
import { addFileBatchRoutes } from "../../gateway/http/openai/file-batches.ts";
import { addFileRoutes } from "../../gateway/http/openai/files.ts";
import { addUploadRoutes } from "../../gateway/http/openai/uploads.ts";
import { addVectorStoreFileRoutes } from "../../gateway/http/openai/vector-store-files.ts";
import { addVectorStoreRoutes } from "../../gateway/http/openai/vector-stores.ts";
import type { AppEnv } from "../../gateway/http/transport/context.ts";
import { Metrics } from "../../gateway/telemetry/metrics.ts";
import type { Scope } from "../../gateway/tenant/principal.ts";
import type { UsageLedger } from "../../gateway/tenant/usage.ts";
import { createWorld, type World } from "../corpus/world.ts";

export interface StoreApp {
  readonly world: World;
  readonly app: Hono<AppEnv>;
  readonly adminKey: string;
  readonly usage: UsageLedger;
  /** Level and message of each line. */
  readonly logged: readonly string[];
  /** Tenants whose batches were to look at what they still have. */
  readonly rechecked: readonly string[];
  /** A tenant and a key of it. */
  tenant(name: string, ...scopes: Scope[]): { readonly id: `tenant_${string}`; readonly key: string };
}

export interface Answer {
  readonly status: number;
  readonly body: unknown;
  readonly headers: Headers;
  /** The body's `id`, or "". */
  readonly id: string;
  /** Ids of a list's items. */
  readonly ids: readonly string[];
}

export function createStoreApp(): StoreApp {
  const world = createWorld();
  const { tenants, corpus } = world;
  const logged: string[] = [];
  const rechecked: string[] = [];
  const records = openRecords(world.db, world.storage, () => undefined);
  const uploads = new ConcurrencyLimiter(2);
  const app = createApp({
    authenticator: tenants.apiKeys,
    routes: [
      (it) => addFileRoutes(it, { corpus, uploads, downloads: new ConcurrencyLimiter(2) }),
      (it) => addUploadRoutes(it, { corpus, uploads }),
      (it) => addVectorStoreRoutes(it, { corpus }),
      (it) => addGrantRoutes(it, { corpus }),
      (it) => addVectorStoreFileRoutes(it, { corpus }),
      (it) => addFileBatchRoutes(it, { corpus }),
      (it) => addSourceRoutes(it, { corpus }),
      (it) => addPrepareRoutes(it, { corpus, jobStreams: new ConcurrencyLimiter(2) }),
      (it) =>
        addTenantRoutes(it, {
          ...{ tenants, corpus, stored: records.stored },
          batches: { recheck: (id) => void rechecked.push(id) },
          traces: records.traces,
        }),
      (it) => addLimitRoutes(it, { tenants, storage: world.storage, budgets: records.budgets }),
      records.addRoutes,
    ],
    translateError: (thrown) =>
      thrown instanceof DbError && thrown.code === "full" ? new ApiError("storage_full", { cause: thrown }) : undefined,
    audit: records.audit,
    metrics: new Metrics(),
    log: (level, message) => void logged.push(`${level} ${message}`),
  });
  const adminKey = tenants.apiKeys.bootstrap(undefined)?.apiKey ?? "";
  const admin = tenants.apiKeys.valid(adminKey);
  if (admin === undefined) throw new Error("no admin key");
  return {
    world,
    app,
    adminKey,
    usage: records.usage,
    logged,
    rechecked,
    tenant: (name, ...scopes) => {
      const { id } = tenants.create(name);
      const all: Scope[] = ["inference", "corpus:read", "corpus:write", "corpus:prepare", "tenant:admin"];
      return { id, key: tenants.apiKeys.mint(admin, id, name, scopes.length > 0 ? scopes : all).apiKey };
    },
  };
}

/** A call with a JSON body, or with a form. */
export async function call(
  app: Hono<AppEnv>,
  key: string | undefined,
  method: string,
  path: string,
  body?: unknown,
): Promise<Answer> {
  const headers = new Headers(key === undefined ? {} : { authorization: `Bearer ${key}` });
  let payload: string | FormData | undefined;
  if (body instanceof FormData) payload = body;
  else if (body !== undefined) {
    payload = typeof body === "string" ? body : JSON.stringify(body);
    headers.set("content-type", "application/json");
  }
  const response = await app.request(path, { method, headers, ...(payload === undefined ? {} : { body: payload }) });
  const text = await response.text();
  const isJson = response.headers.get("content-type")?.startsWith("application/json");
  const answer: unknown = isJson ? JSON.parse(text) : text;
  const parts = (typeof answer === "object" ? answer : {}) as { id?: string; data?: readonly { id: string }[] };
  const ids = (parts.data ?? []).map(({ id }) => id);
  return { status: response.status, body: answer, headers: response.headers, id: parts.id ?? "", ids };
}

export function form(filename: string, text: string | Uint8Array, fields: Record<string, string> = {}): FormData {
  const data = new FormData();
  data.set("file", new File([text as Uint8Array<ArrayBuffer>], filename, { type: "text/plain" }));
  data.set("purpose", "assistants");
  for (const [name, value] of Object.entries(fields)) data.set(name, value);
  return data;
}

export async function upload(app: Hono<AppEnv>, key: string, filename: string, text: string): Promise<string> {
  return (await call(app, key, "POST", "/v1/files", form(filename, text))).id;
}
