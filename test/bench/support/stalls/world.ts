/**
 * A server with a hostile tenant that has much of everything, and ids of its objects by the names that paths have for
 * them. Who is measured is a tenant of its own.
 */
import { Database } from "bun:sqlite";
import { join } from "node:path";
import { HttpClient } from "../../../../gateway/cli/support/client.ts";
import { startTestServer, type TestServer, type TestTenant } from "../../../support/server.ts";
import { mib, prose, times } from "./texts.ts";

export interface StallWorld extends AsyncDisposable {
  readonly server: TestServer;
  readonly model: string;
  readonly hostile: TestTenant;
  /** One that is asked for nothing else than the short requests that are timed. */
  readonly other: TestTenant;
  /** By path parameter; a case may put a fresh one in. */
  readonly ids: Record<string, string>;
  /** Vector stores with fragments. */
  readonly storeIds: readonly string[];
  /** Files that stand in no vector store. */
  readonly fileIds: readonly string[];
  /** Kept responses, each over a long input. */
  readonly responseIds: readonly string[];
}

const hostileScopes = ["inference", "corpus:read", "corpus:write", "corpus:prepare", "tenant:admin"];
const sitePages = 100;
const [fragmentStores, looseFiles, keptResponses, keyCount] = [4, 200, 8, 200];

/** A file of text, uploaded. @returns its id */
export async function upload(
  client: HttpClient,
  text: string | Blob,
  name: string,
  purpose = "assistants",
): Promise<string> {
  const form = new FormData();
  form.set("purpose", purpose);
  form.set("file", new File([text], name));
  return (await client.upload<{ id: string }>("/v1/files", form)).id;
}

/** A vector store over these files, ingested. */
export async function makeStore(client: HttpClient, fileIds: readonly string[], chunkTokens: number): Promise<string> {
  const { id } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "store" });
  const chunking = { type: "static", static: { max_chunk_size_tokens: chunkTokens, chunk_overlap_tokens: 0 } };
  await client.json("POST", `/v1/vector_stores/${id}/file_batches`, { file_ids: fileIds, chunking_strategy: chunking });
  for (;;) {
    const store = await client.json<{ file_counts: { in_progress: number } }>("GET", `/v1/vector_stores/${id}`);
    if (store.file_counts.in_progress === 0) return id;
    await Bun.sleep(50);
  }
}

/** A tenant with this many vector stores and nothing in them. */
export async function tenantOfStores({ admin, url }: TestServer, count: number): Promise<string> {
  const { id } = await admin.json<{ id: string }>("POST", "/admin/v1/tenants", { name: "doomed" });
  const { key } = await admin.json<{ key: string }>("POST", `/admin/v1/tenants/${id}/keys`, { scopes: hostileScopes });
  const client = new HttpClient({ url, apiKey: key });
  for (let at = 0; at < count; at += 20) {
    await Promise.all(times(20, () => client.json("POST", "/v1/vector_stores", { name: "empty" })));
  }
  return id;
}

/** Every fragment has its vector: nothing of the making runs beside what is measured. */
async function untilVectors(dataDir: string): Promise<void> {
  const db = new Database(join(dataDir, "spangate.db"), { readonly: true });
  const count = (table: string): number =>
    db.query<{ n: number }, []>(`select count(*) as n from ${table}`).get()?.n ?? 0;
  try {
    while (count("fragments") !== count("fragment_vectors")) await Bun.sleep(500);
  } finally {
    db.close();
  }
}

/** Every source has been read. */
async function untilRead(client: HttpClient, storeIds: readonly string[]): Promise<void> {
  type Sources = { readonly data: readonly { readonly status: string }[] };
  for (const id of storeIds) {
    const path = `/admin/v1/vector_stores/${id}/sources?limit=100`;
    while ((await client.json<Sources>("GET", path)).data.some(({ status }) => status !== "idle")) await Bun.sleep(500);
  }
}

async function hostileTenant({ admin, url }: TestServer): Promise<TestTenant> {
  const { id } = await admin.json<{ id: string }>("POST", "/admin/v1/tenants", { name: "hostile" });
  const { key } = await admin.json<{ key: string }>("POST", `/admin/v1/tenants/${id}/keys`, { scopes: hostileScopes });
  return { id, apiKey: key, client: new HttpClient({ url, apiKey: key }) };
}

/** A web site of many pages, each of which is new whenever it is asked for. */
function openSite() {
  return Bun.serve({
    ...{ hostname: "127.0.0.1", port: 0 },
    fetch(request) {
      const { pathname, origin } = new URL(request.url);
      if (pathname === "/robots.txt") return new Response("", { status: 404 });
      if (pathname !== "/sitemap.xml") {
        return new Response(`${prose(2_000, 5)} ${crypto.randomUUID()}`, { headers: { "content-type": "text/plain" } });
      }
      const urls = times(sitePages, (at) => `<url><loc>${origin}/${at}.txt</loc></url>`);
      return new Response(`<urlset>${urls.join("")}</urlset>`);
    },
  });
}

export async function openStallWorld(say: (line: string) => void): Promise<StallWorld> {
  const server = await startTestServer({ env: { SPANGATE_SOURCE_NETWORKS: "127.0.0.1/32" } });
  const site = openSite();
  const dispose = async (): Promise<void> => {
    await Promise.all([site.stop(true), server[Symbol.asyncDispose]()]);
  };
  try {
    const { model } = server;
    const [hostile, other] = [await hostileTenant(server), await server.tenant("other")];
    const { client } = hostile;
    say("the hostile tenant's vector stores");
    const storeIds: string[] = [];
    for (let at = 0; at < fragmentStores; at++) {
      const fileId = await upload(client, prose(3.5 * mib, at + 1), `long-${at}.txt`);
      // The first has the largest fragments that there may be, the others many.
      storeIds.push(await makeStore(client, [fileId], at === 0 ? 4_096 : 64));
    }
    say("its vectors");
    await untilVectors(server.dataDir);
    say("its files, responses, batches and keys");
    const fileIds: string[] = [];
    for (let at = 0; at < looseFiles; at++)
      fileIds.push(await upload(client, `Page ${at}. ${prose(400, at)}`, `${at}.md`));
    const responseIds = await makeResponses(client, model);
    for (let at = 0; at < keyCount; at++) {
      await server.admin.json("POST", `/admin/v1/tenants/${hostile.id}/keys`, {
        scopes: ["inference"],
        name: "n".repeat(256),
      });
    }
    say("its sources");
    const ids = {
      ...(await objectIds(server, hostile, storeIds, fileIds, `http://127.0.0.1:${site.port}/sitemap.xml`)),
      response_id: responseIds.at(-1) ?? "",
      request_id: (await client.json<{ data: { id: string }[] }>("GET", "/admin/v1/traces?limit=1")).data[0]?.id ?? "",
      id: model,
    };
    await untilVectors(server.dataDir);
    return { server, model, hostile, other, ids, storeIds, fileIds, responseIds, [Symbol.asyncDispose]: dispose };
  } catch (error) {
    await dispose();
    throw error;
  }
}

/** A chain, each over as much as a prompt may have. */
async function makeResponses(client: HttpClient, model: string): Promise<readonly string[]> {
  const ids: string[] = [];
  for (let at = 0; at < keptResponses; at++) {
    const body = {
      model,
      input: times(100, (index) => ({ role: "user", content: `Line ${at} ${index}. ${prose(60, index)}` })),
      max_output_tokens: 1,
      ...(at === 0 ? {} : { previous_response_id: ids.at(-1) }),
    };
    ids.push((await client.json<{ id: string }>("POST", "/v1/responses", body)).id);
  }
  return ids;
}

type Ids = Record<string, string>;

async function objectIds(
  { admin }: TestServer,
  { id: hostileId, client }: TestTenant,
  storeIds: readonly string[],
  fileIds: readonly string[],
  siteUrl: string,
): Promise<Ids> {
  const made = async (path: string, body?: unknown): Promise<string> =>
    (await client.json<{ id: string }>("POST", path, body)).id;
  const vectorStoreId = storeIds[1] ?? "";
  const { data: fragments } = await client.json<{ data: readonly { readonly id: string; readonly file_id: string }[] }>(
    "GET",
    `/admin/v1/vector_stores/${vectorStoreId}/fragments`,
  );
  const [fragment] = fragments;
  if (fragment === undefined) throw new Error("the vector store has no fragment");
  const batchId = await made(`/v1/vector_stores/${vectorStoreId}/file_batches`, { file_ids: fileIds.slice(0, 100) });
  const jobId = await made(`/admin/v1/vector_stores/${storeIds[0]}/prepare`, {});
  await client.json("POST", `/admin/v1/jobs/${jobId}/cancel`, {});
  for (let at = 0; at < 30; at++) {
    const source = { url: `http://127.0.0.1:1/${at}/`, name: `${at} ${prose(400, at)}`.slice(0, 500) };
    await made(`/admin/v1/vector_stores/${vectorStoreId}/sources`, source);
  }
  const siteStoreId = await made("/v1/vector_stores", { name: "site" });
  const siteId = await made(`/admin/v1/vector_stores/${siteStoreId}/sources`, { url: siteUrl, max_pages: 10_000 });
  await untilRead(client, [vectorStoreId, siteStoreId]);
  const uploadId = await made("/v1/uploads", {
    bytes: 8,
    filename: "a.txt",
    mime_type: "text/plain",
    purpose: "assistants",
  });
  const { id: spareTenantId } = await admin.json<{ id: string }>("POST", "/admin/v1/tenants", { name: "spare" });
  const { id: keyId } = await admin.json<{ id: string }>("POST", `/admin/v1/tenants/${hostileId}/keys`, {
    scopes: ["inference"],
  });
  return {
    vector_store_id: vectorStoreId,
    file_id: fragment.file_id,
    fragment_id: fragment.id,
    batch_id: batchId,
    job_id: jobId,
    source_id: siteId,
    upload_id: uploadId,
    tenant_id: hostileId,
    spare_tenant_id: spareTenantId,
    key_id: keyId,
  };
}
