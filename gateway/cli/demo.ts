/**
 * The demo shows the product's main job from end to end: two tenants have documents, the documents' KV is computed
 * once, and questions are answered from it over HTTP. Everything goes through the public API; no import needs an installed dependency.
 */
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type DemoCorpus, readDemoCorpora } from "./demo-corpora.ts";
import { type AskedQuestion, answersTable, closingWords, questionBody } from "./demo-report.ts";
import { HttpClient, HttpError } from "./support/client.ts";
import { CommandError } from "./support/command.ts";
import { prepareKernels } from "./support/kernels.ts";
import {
  addFile,
  askChat,
  firstModelId,
  type MintedKey,
  prepareStore,
  type Tenant,
  type VectorStore,
  waitForFile,
} from "./support/operations.ts";
import { Progress } from "./support/progress.ts";
import { type ServerProcess, startServer } from "./support/server-process.ts";
import { ensureInstalled } from "./support/setup.ts";

interface DemoTenant {
  readonly corpus: DemoCorpus;
  readonly client: HttpClient;
  readonly apiKey: string;
  readonly storeId: string;
}

const keyScopes = ["inference", "corpus:read", "corpus:write", "corpus:prepare"];
const questionsPerTenant = 6;

async function createTenant(url: string, admin: HttpClient, corpus: DemoCorpus): Promise<DemoTenant> {
  const tenant = await admin.json<Tenant>("POST", "/admin/v1/tenants", { name: corpus.tenant });
  const made = await admin.json<MintedKey>("POST", `/admin/v1/tenants/${tenant.id}/keys`, { scopes: keyScopes });
  const apiKey = made.key;
  const client = new HttpClient({ url, apiKey });
  const { id: storeId } = await client.json<VectorStore>("POST", "/v1/vector_stores", { name: corpus.tenant });
  const progress = new Progress(`  ingest  ${corpus.tenant.padEnd(16)}`);
  for (const [index, { name, text }] of corpus.documents.entries()) {
    progress.update(index, corpus.documents.length, name);
    await waitForFile(
      client,
      storeId,
      await addFile(client, storeId, name, new Blob([text], { type: "text/markdown" })),
    );
  }
  progress.update(corpus.documents.length, corpus.documents.length, "documents");
  progress.finish();
  return { corpus, client, apiKey, storeId };
}

/** `count` of the items, from the first to the last in even steps. */
function evenly<Item>(items: readonly Item[], count: number): readonly Item[] {
  const step = Math.max(1, items.length / count);
  return items.filter((_, index) => Math.floor(index / step) !== Math.floor((index - 1) / step)).slice(0, count);
}

/** Asks a handful of questions. `reuse: false` computes the whole prompt and keeps nothing: what a server without reuse does. */
async function askAll(
  { client, corpus, storeId }: DemoTenant,
  model: string,
  reuse: boolean,
): Promise<AskedQuestion[]> {
  const asked: AskedQuestion[] = [];
  for (const { question, answer: expected } of evenly(corpus.questions, questionsPerTenant)) {
    const answer = await askChat(client, {
      ...questionBody(model, storeId, question),
      ...(reuse ? {} : { spangate: { reuse: false } }),
    });
    asked.push({ question, expected, answer });
  }
  return asked;
}

/** Asks for one tenant's store with the other tenant's key. @returns the status of the answer */
async function statusForOther(other: DemoTenant, owner: DemoTenant): Promise<number> {
  try {
    await other.client.json("GET", `/v1/vector_stores/${owner.storeId}`);
    return 200;
  } catch (error) {
    if (error instanceof HttpError) return error.status;
    throw error;
  }
}

async function runDemo(server: ServerProcess, adminKey: string): Promise<void> {
  const admin = new HttpClient({ url: server.url, apiKey: adminKey });
  const tenants: DemoTenant[] = [];
  console.log("\nTwo tenants, each with documents of its own:");
  for (const corpus of readDemoCorpora().slice(0, 2)) tenants.push(await createTenant(server.url, admin, corpus));
  const [first, second] = tenants;
  if (first === undefined || second === undefined) throw new CommandError("the demo needs two corpora");
  const model = await firstModelId(first.client);

  // The first request of a process pays for just-in-time compilation, so no figure counts it.
  await askAll({ ...first, corpus: { ...first.corpus, questions: first.corpus.questions.slice(0, 1) } }, model, false);
  const cold: AskedQuestion[][] = [];
  for (const tenant of tenants) cold.push(await askAll(tenant, model, false));

  console.log("\nCompute every fragment once and keep it:");
  for (const { client, corpus, storeId } of tenants) {
    const progress = new Progress(`  prepare ${corpus.tenant.padEnd(16)}`);
    await prepareStore(client, storeId, (job) => progress.update(job.done, job.total, "fragments"));
    progress.finish();
  }
  for (const [index, tenant] of tenants.entries()) {
    const prepared = await askAll(tenant, model, true);
    console.log(`\n${tenant.corpus.tenant}:\n${answersTable(cold[index] ?? [], prepared)}`);
  }
  const status = await statusForOther(second, first);
  if (status !== 404)
    throw new CommandError(`${second.corpus.tenant} got ${status} for ${first.corpus.tenant}'s store`);
  console.log(
    `\n${second.corpus.tenant} asks for ${first.corpus.tenant}'s vector store: ${status}, as if it did not exist.`,
  );
  console.log(closingWords({ url: server.url, adminKey, model, tenants }));
}

async function main(): Promise<number> {
  const installMs = await ensureInstalled();
  if (installMs !== undefined) console.log(`Dependencies installed in ${(installMs / 1_000).toFixed(1)} s.`);
  await prepareKernels();
  const dataDir = mkdtempSync(join(tmpdir(), "spangate-demo-"));
  const adminKey = process.env.SPANGATE_ADMIN_KEY ?? `sk-${randomBytes(32).toString("base64url")}`;
  const env = {
    SPANGATE_PORT: "0",
    SPANGATE_LOG: "warn",
    ...process.env,
    SPANGATE_DATA: dataDir,
    SPANGATE_ADMIN_KEY: adminKey,
  };
  const startMs = performance.now();
  let server: ServerProcess | undefined;
  const interrupted = Promise.withResolvers<"interrupted">();
  // Ctrl-C arrives twice: from the terminal and from `bun run`, which passes it on. Both mean the same.
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => interrupted.resolve("interrupted"));
  try {
    server = await startServer({ env, onLog: (text) => process.stderr.write(text) });
    console.log(`Server ready in ${((performance.now() - startMs) / 1_000).toFixed(1)} s: ${server.url}`);
    const work = runDemo(server, adminKey).then(() => "served" as const);
    if ((await Promise.race([work, interrupted.promise])) === "served") {
      const end = await Promise.race([interrupted.promise, server.exited]);
      if (end !== "interrupted") throw new CommandError(`the server ended with exit code ${end}`);
    }
    return 0;
  } finally {
    await server?.stop();
    rmSync(dataDir, { recursive: true, force: true });
  }
}

try {
  process.exitCode = await main();
} catch (error) {
  if (!(error instanceof CommandError)) throw error;
  console.error(`demo: ${error.message}`);
  process.exitCode = 1;
}
process.exit();
