/**
 * The whole gateway on a socket, in this process, over a worker without a model: tenants with every kind of object,
 * and what went wrong within, so that hostile requests can be judged by more than their answers.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseConfig } from "../../gateway/config.ts";
import type { RouteDeclaration } from "../../gateway/http/transport/route.ts";
import { startServer } from "../../gateway/server.ts";
import { type Scope, scopes } from "../../gateway/tenant/principal.ts";
import { fakeCard } from "../dispatch/fake-core.ts";

export const model = fakeCard.id;
export const tenantScopes: readonly Scope[] = scopes.filter((scope) => !scope.startsWith("platform:"));

export interface Caller {
  readonly id: string;
  readonly apiKey: string;
}

/** Ids by the name of the path parameter that takes them. */
export type ObjectIds = Readonly<Record<string, string>>;

export interface FuzzWorld extends AsyncDisposable {
  readonly url: string;
  readonly dataDir: string;
  readonly routes: readonly RouteDeclaration[];
  readonly adminKey: string;
  /** Of the caller's own objects; those of `tenant_id` and `key_id` belong to a tenant that may be spoilt. */
  readonly ids: ObjectIds;
  readonly caller: Caller;
  /** Log lines of failures, and what nobody caught; empty when all is well. */
  readonly faults: string[];
  /** A key of the tenant's. */
  mint(tenantId: string, keyScopes: readonly Scope[]): Promise<string>;
  tenant(name: string, keyScopes?: readonly Scope[]): Promise<Caller>;
  /** One object of every kind, of the caller's. */
  objectsOf(caller: Caller): Promise<ObjectIds>;
  /** Makes `ids` anew, when some of their objects are gone. */
  renew(): Promise<void>;
  call(apiKey: string | undefined, method: string, path: string, body?: unknown): Promise<Response>;
}

const adminKey = "sk-admin-key-of-a-server-that-only-this-test-talks-to";

export interface WorldOptions {
  /** Of the server. */
  readonly settings?: Readonly<Record<string, string>>;
  /** To which the worker appends the tokens of each request. */
  readonly requestsFile?: string;
}

export async function openWorld({ settings = {}, requestsFile }: WorldOptions = {}): Promise<FuzzWorld> {
  const dataDir = mkdtempSync(join(tmpdir(), "spangate-fuzz-"));
  const names = { SPANGATE_ADMIN_KEY: adminKey, SPANGATE_MODEL_NAME: model };
  const own = { ...names, SPANGATE_PORT: "0", SPANGATE_DATA: dataDir };
  const env = { ...process.env, ...own, ...settings };
  const faults: string[] = [];
  const log = (level: string, message: string, fields: object = {}): void => {
    if (level === "error" || message === "request failed") faults.push(`${level} ${message} ${JSON.stringify(fields)}`);
  };
  const workerArgv = [
    process.execPath,
    join(import.meta.dir, "worker.ts"),
    ...(requestsFile === undefined ? [] : [requestsFile]),
  ];
  const server = await startServer(parseConfig(env), { env, workerArgv, log });
  await server.ready;
  const onRejection = (reason: unknown): void => void faults.push(`unhandled rejection: ${String(reason)}`);
  const onException = (error: unknown): void => void faults.push(`uncaught exception: ${String(error)}`);
  process.on("unhandledRejection", onRejection);
  process.on("uncaughtException", onException);
  const objects = new Objects(server.url);
  const caller = await objects.tenant("caller", tenantScopes);
  const state = { ids: await objects.of(caller), renewing: undefined as Promise<void> | undefined };
  return {
    url: server.url,
    dataDir,
    routes: server.routes,
    adminKey,
    caller,
    faults,
    get ids() {
      return state.ids;
    },
    renew: () => {
      state.renewing ??= objects.of(caller, state.ids).then((ids) => {
        state.ids = ids;
        state.renewing = undefined;
      });
      return state.renewing;
    },
    mint: (tenantId, keyScopes) => objects.mint(tenantId, keyScopes),
    tenant: (name, keyScopes = tenantScopes) => objects.tenant(name, keyScopes),
    objectsOf: (owner) => objects.of(owner),
    call: (apiKey, method, path, body) => objects.call(apiKey, method, path, body),
    [Symbol.asyncDispose]: async () => {
      process.off("unhandledRejection", onRejection);
      process.off("uncaughtException", onException);
      await server.stop();
      rmSync(dataDir, { recursive: true, force: true });
    },
  };
}

/** Makes objects the way callers do. */
class Objects {
  readonly #url: string;

  constructor(url: string) {
    this.#url = url;
  }

  async call(apiKey: string | undefined, method: string, path: string, body?: unknown): Promise<Response> {
    const headers = new Headers(apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` });
    let payload: string | FormData | undefined;
    if (body instanceof FormData) payload = body;
    else if (body !== undefined) {
      payload = typeof body === "string" ? body : JSON.stringify(body);
      headers.set("content-type", "application/json");
    }
    return await fetch(this.#url + path, { method, headers, ...(payload === undefined ? {} : { body: payload }) });
  }

  async mint(tenantId: string, keyScopes: readonly Scope[]): Promise<string> {
    return (await this.#made(adminKey, `/admin/v1/tenants/${tenantId}/keys`, { scopes: keyScopes })).key ?? "";
  }

  async tenant(name: string, keyScopes: readonly Scope[]): Promise<Caller> {
    const { id } = await this.#made(adminKey, "/admin/v1/tenants", { name });
    return { id, apiKey: await this.mint(id, keyScopes) };
  }

  /** @param earlier those of its objects that nothing can delete are taken from here */
  async of({ apiKey }: Caller, earlier: ObjectIds = {}): Promise<ObjectIds> {
    const post = async (path: string, body?: unknown) => (await this.#made(apiKey, path, body)).id;
    const form = new FormData();
    form.set("file", new File([`Anna works for Tom. ${crypto.randomUUID()}`], "people.md", { type: "text/markdown" }));
    form.set("purpose", "assistants");
    const file = await post("/v1/files", form);
    const store = await post("/v1/vector_stores", { name: "store", metadata: { kind: "people" } });
    const batch = await post(`/v1/vector_stores/${store}/file_batches`, { file_ids: [file] });
    const job = await post(`/admin/v1/vector_stores/${store}/prepare`);
    // It is read to no end: its address is not of the public internet.
    const source = await post(`/admin/v1/vector_stores/${store}/sources`, { url: "http://127.0.0.1:1/" });
    if (earlier.source_id !== undefined) await this.call(apiKey, "DELETE", `/admin/v1/sources/${earlier.source_id}`);
    const response = await post("/v1/responses", { model, input: "Who is Anna?", max_output_tokens: 2 });
    const traced = await this.call(apiKey, "POST", "/v1/completions", { model, prompt: "Anna", max_tokens: 2 });
    await traced.arrayBuffer();
    const uploaded = { bytes: 8, filename: "a.txt", mime_type: "text/plain", purpose: "assistants" };
    const spoilt = await this.tenant("spoilt", ["inference"]);
    const key = await this.#made(adminKey, `/admin/v1/tenants/${spoilt.id}/keys`, { scopes: ["inference"] });
    return {
      ...(earlier.bulk_id === undefined ? await this.#bulk(apiKey) : earlier),
      file_id: file,
      upload_id: earlier.upload_id ?? (await post("/v1/uploads", uploaded)),
      vector_store_id: store,
      batch_id: batch,
      request_batch_id: earlier.request_batch_id ?? (await this.#requestBatch(apiKey)),
      message_batch_id: await this.#messageBatch(apiKey),
      job_id: job,
      source_id: source,
      fragment_id: await this.#fragmentOf(apiKey, store),
      response_id: response,
      request_id: traced.headers.get("x-request-id") ?? "",
      tenant_id: spoilt.id,
      key_id: key.id,
      id: model,
      page: "limits",
      resource: "chat",
      picture: "rag.svg",
      asset: "main.js",
    };
  }

  /** Of a store that is being ingested. */
  async #fragmentOf(apiKey: string, store: string): Promise<string> {
    for (;;) {
      const answer = await this.call(apiKey, "GET", `/admin/v1/vector_stores/${store}/fragments`);
      const { data = [] } = (await answer.json()) as { readonly data?: readonly { readonly id: string }[] };
      if (data[0] !== undefined) return data[0].id;
      await Bun.sleep(2);
    }
  }

  async #requestBatch(apiKey: string): Promise<string> {
    const endpoint = "/v1/completions";
    const line = { custom_id: crypto.randomUUID(), method: "POST", url: endpoint, body: { model, prompt: "Anna" } };
    const form = new FormData();
    form.set("file", new File([JSON.stringify(line)], "lines.jsonl"));
    form.set("purpose", "batch");
    const { id } = await this.#made(apiKey, "/v1/files", form);
    return (await this.#made(apiKey, "/v1/batches", { input_file_id: id, endpoint, completion_window: "24h" })).id;
  }

  /** One that has ended. */
  async #messageBatch(apiKey: string): Promise<string> {
    const params = { model, max_tokens: 2, messages: [{ role: "user", content: "Anna" }] };
    const path = "/v1/messages/batches";
    const { id } = await this.#made(apiKey, path, { requests: [{ custom_id: "a", params }] });
    for (;;) {
      const answer = await this.call(apiKey, "GET", `${path}/${id}`);
      const { ended_at } = (await answer.json()) as { readonly ended_at: string | null };
      if (ended_at !== null) return id;
      await Bun.sleep(2);
    }
  }

  async #bulk(apiKey: string): Promise<ObjectIds> {
    const line = { id: crypto.randomUUID(), query: { g: { model, max_tokens: 2, input: { user: "Hello" } } } };
    const answer = await fetch(`${this.#url}/v1/query/bulk`, {
      method: "POST",
      headers: { authorization: `Bearer ${apiKey}`, "content-type": "application/x-ndjson" },
      body: JSON.stringify(line),
    });
    const lines = (await answer.text()).trim().split("\n");
    const id = answer.headers.get("x-bulk-id");
    const result = JSON.parse(lines[1] ?? "{}") as { id?: string };
    if (id === null || result.id === undefined) throw new Error(`no bulk request: ${lines.join(" ")}`);
    return { bulk_id: id, result_id: result.id };
  }

  async #made(apiKey: string, path: string, body?: unknown): Promise<{ readonly id: string; readonly key?: string }> {
    const response = await this.call(apiKey, "POST", path, body);
    if (!response.ok) throw new Error(`POST ${path}: ${response.status} ${await response.text()}`);
    return (await response.json()) as { id: string; key?: string };
  }
}
