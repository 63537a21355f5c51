/**
 * A large vector store and its files are deleted on a running server: how long a search still finds something, how
 * long workers hold KV of it, how long its KV and a byte of its text are in the data folder, whether a copy of its KV
 * files opens with the keys that are left, and how long others are held up.
 */
import { Database } from "bun:sqlite";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { type HttpClient, HttpError } from "../../gateway/cli/support/client.ts";
import { CommandError } from "../../gateway/cli/support/command.ts";
import type { PrepareJob, VectorStore } from "../../gateway/cli/support/operations.ts";
import { firstWorkerOf, type TenantCache } from "../support/operator.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";
import { until } from "../support/until.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { HoldMeter } from "./support/hold-meter.ts";
import { copyKv, kvFilesIn, openedWith } from "./support/kv-files.ts";
import { type KvBucket, openKvBucket } from "./support/kv-tiers.ts";
import { figure } from "./support/stats.ts";
import { generator, zipfTexts } from "./support/zipf-texts.ts";

const [defaultFragments, defaultPrepared] = [100_000, 2_000];
const textsPerFile = 5_000;
/** One text fills a fragment of so many tokens more than half. */
const chunking = { type: "static", static: { max_chunk_size_tokens: 70, chunk_overlap_tokens: 0 } };
/** Words that occur once: of so many the ends are looked for, which the index keeps even where it shares beginnings. */
const canaryCount = 32;
const canaryEndChars = 7;
const [searchBoundMs, goneBoundMs, holdBoundMs, giveUpMs] = [1_000, 5_000, 100, 120_000];

interface Corpus {
  readonly owner: TestTenant;
  readonly storeId: string;
  readonly fileIds: readonly string[];
  readonly fragments: number;
  readonly patterns: readonly string[];
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const texts = Number(option("fragments") ?? defaultFragments);
  const prepared = Number(option("prepared") ?? defaultPrepared);
  if (!(texts >= canaryCount && prepared >= 1)) throw new CommandError("--fragments is 32 or more, --prepared 1");
  const kind = option("bucket");
  await using bucket = kind === undefined ? undefined : await openKvBucket(kind);
  await using server = await startTestServer({ env: { SPANGATE_KV_DISK_BYTES: "auto", ...bucket?.env } });
  const corpus = await makeCorpus(server, texts, say);
  say(`preparing ${prepared} of ${corpus.fragments} fragments`);
  await prepare(corpus, prepared);
  const before = { kv: await heldBlocks(server, corpus), found: await isFound(corpus), traces: places(server, corpus) };
  // What somebody may have copied, with the bytes of the keys that open it.
  if (bucket !== undefined) await untilCopied(server, bucket);
  const copies = copyKv(server.dataDir);
  const openedBefore = await openedWith(server.dataDir, copies.files);
  const bucketCopies = (await bucket?.copies()) ?? new Map<string, Uint8Array>();
  const bucketOpenedBefore = await openedWith(server.dataDir, bucketCopies);
  const idle = new HoldMeter(server.url);
  await Bun.sleep(2_000);
  const idleHolds = await idle.stop();
  say("deleting");
  const meter = new HoldMeter(server.url);
  const startMs = performance.now();
  await corpus.owner.client.json("DELETE", `/v1/vector_stores/${corpus.storeId}`);
  const deleteMs = performance.now() - startMs;
  const since = async (isGone: () => boolean | Promise<boolean>, pauseMs: number): Promise<number> => {
    while (!(await isGone())) {
      if (performance.now() - startMs > giveUpMs) return Number.NaN;
      await Bun.sleep(pauseMs);
    }
    return performance.now() - startMs;
  };
  const removeFiles = async () => {
    for (const id of corpus.fileIds) await corpus.owner.client.json("DELETE", `/v1/files/${id}`);
  };
  const [searchMs, kvMs, cachedMs, filesMs, keysMs, bucketMs, textMs] = await Promise.all([
    since(async () => !(await isFound(corpus)), 5),
    since(async () => (await heldBlocks(server, corpus)) === 0, 5),
    // What the worker itself counts, told every second or so.
    since(async () => (await firstWorkerOf(server)).stats?.cachedBlocks === 0, 50),
    since(() => kvFilesIn(server.dataDir).length === 0, 20),
    since(async () => !(await isAnywhere(server, copies.sealedKeys)), 50),
    bucket === undefined ? Number.NaN : since(async () => (await bucket.names()).length === 0, 100),
    removeFiles().then(() => since(async () => !(await isAnywhere(server, corpus.patterns)), 50)),
  ]);
  const holds = await meter.stop();
  const openedAfter = await openedWith(server.dataDir, copies.files);
  const bucketOpenedAfter = await openedWith(server.dataDir, bucketCopies);
  const disk = { workerCountsMs: cachedMs, kvFilesMs: filesMs, kvKeysMs: keysMs };
  const times = { deleteMs, searchMs, kvMs, ...disk, ...(bucket && { bucketMs }), textMs };
  const longest = [`${figure(holds.longestMs)} (idle ${figure(idleHolds.longestMs)})`, figure(holds.p99Ms)];
  return {
    model: server.model,
    header: ["", "before", "ms after the deletion began"],
    rows: [
      ["DELETE answered", "", figure(deleteMs)],
      ["search finds nothing", before.found ? "found" : "nothing", figure(searchMs)],
      ["no KV block of it on a worker", `${before.kv} blocks`, figure(kvMs)],
      ["the worker's own count is 0", "", figure(cachedMs)],
      ["no KV file of it on the disk", `${copies.files.size} files`, figure(filesMs)],
      ["no byte of their keys in the data folder", `${copies.sealedKeys.length} keys`, figure(keysMs)],
      ["copies of these files that open", `${openedBefore} open`, `${openedAfter} open`],
      ...(bucket === undefined
        ? []
        : [
            ["no object of it in the bucket", `${bucketCopies.size} objects`, figure(bucketMs)],
            ["copies of these objects that open", `${bucketOpenedBefore} open`, `${bucketOpenedAfter} open`],
          ]),
      ["no byte of its text in the data folder", `${before.traces} places`, figure(textMs)],
      ["longest that another request waited, p99", "", longest.join(", ")],
    ],
    notes: [`${corpus.fragments} fragments in ${corpus.fileIds.length} files, which are deleted after the store.`],
    bars: [
      atLeast("fragments", corpus.fragments, texts),
      atLeast("KV blocks before", before.kv, prepared),
      atLeast("places of its text before", before.traces, texts),
      atLeast("KV files before", copies.files.size, prepared),
      atLeast("copies of them that opened before", openedBefore, copies.files.size),
      atMost("no KV file of it, no byte of a key, ms", Math.max(filesMs, keysMs), goneBoundMs),
      atMost("copies that open with the keys that are left", openedAfter, 0),
      ...(bucket === undefined
        ? []
        : [
            atLeast("objects in the bucket before, and that opened", bucketOpenedBefore, bucketCopies.size),
            atLeast("of the KV files", bucketCopies.size, copies.files.size),
            atMost("no object of it in the bucket, ms", bucketMs, goneBoundMs),
            atMost("copies from the bucket that open with the keys that are left", bucketOpenedAfter, 0),
          ]),
      atMost("search finds nothing, ms", searchMs, searchBoundMs),
      atMost("no KV of it on a worker, ms", Math.max(kvMs, cachedMs), goneBoundMs),
      atMost("no byte of its text in the data folder, ms", textMs, goneBoundMs),
      atMost("longest that another request waited, ms", holds.longestMs, holdBoundMs),
    ],
    details: {
      fragments: corpus.fragments,
      before,
      kvFiles: copies.files.size,
      openedBefore,
      openedAfter,
      ...(bucket && { bucketObjects: bucketCopies.size, bucketOpenedBefore, bucketOpenedAfter }),
      times,
      holds,
      idleHolds,
    },
  };
}

async function makeCorpus(server: TestServer, count: number, say: (line: string) => void): Promise<Corpus> {
  const random = generator(1);
  const canary = () => Array.from({ length: 12 }, () => String.fromCharCode(97 + Math.floor(26 * random()))).join("");
  const canaries: string[] = [];
  const texts = zipfTexts(random, count).map((text, index) => {
    if (index % Math.floor(count / canaryCount) !== 0) return text;
    // Its end is no ending of English, which the index would take off.
    const word = `${canary()}qxk`;
    canaries.push(word);
    return text.replace(/\.$/, ` ${word}.`);
  });
  const owner = await server.tenant("owner");
  const { id: storeId } = await owner.client.json<VectorStore>("POST", "/v1/vector_stores", { name: "doomed" });
  const fileIds: string[] = [];
  for (let at = 0; at < texts.length; at += textsPerFile) {
    const form = new FormData();
    form.set("purpose", "assistants");
    form.set("file", new File([texts.slice(at, at + textsPerFile).join("\n\n")], `${at}.txt`, { type: "text/plain" }));
    fileIds.push((await owner.client.upload<{ id: string }>("/v1/files", form)).id);
  }
  const batch = { file_ids: fileIds, chunking_strategy: chunking };
  await owner.client.json("POST", `/v1/vector_stores/${storeId}/file_batches`, batch);
  const fragments = await untilIngested(server, say);
  const patterns = ["Fragment n", ...canaries.map((word) => word.slice(-canaryEndChars))];
  return { owner, storeId, fileIds, fragments, patterns };
}

/** Every fragment has its vector too. @returns how many there are */
async function untilIngested(server: TestServer, say: (line: string) => void): Promise<number> {
  const db = new Database(join(server.dataDir, "spangate.db"), { readonly: true });
  const count = (sql: string): number => db.query<{ n: number }, []>(`select count(*) as n from ${sql}`).get()?.n ?? 0;
  try {
    for (;;) {
      await Bun.sleep(1_000);
      const [fragments, vectors] = [count("fragments"), count("fragment_vectors")];
      const pending = count("corpus_files where status = 'in_progress'");
      if (pending === 0 && vectors === fragments) return fragments;
      say(`ingesting: ${fragments} fragments, ${vectors} with a vector`);
    }
  } finally {
    db.close();
  }
}

async function prepare({ owner, storeId }: Corpus, count: number): Promise<void> {
  let job = await owner.client.json<PrepareJob>("POST", `/admin/v1/vector_stores/${storeId}/prepare`, {});
  while (job.done < count && (job.status === "queued" || job.status === "running")) {
    await Bun.sleep(50);
    job = await owner.client.json<PrepareJob>("GET", `/admin/v1/jobs/${job.id}`);
  }
  if (job.status === "failed") throw new CommandError("the fragments could not be prepared");
  await owner.client.json("POST", `/admin/v1/jobs/${job.id}/cancel`, {});
}

/** Every KV file has a copy in the bucket; some may still be written. */
async function untilCopied({ dataDir }: TestServer, bucket: KvBucket): Promise<void> {
  const isCopied = async () => {
    const names = new Set(await bucket.names());
    return kvFilesIn(dataDir).every((name) => names.has(name));
  };
  await until(isCopied, "the bucket has all files", 300_000, 500);
}

async function heldBlocks({ admin }: TestServer, { owner }: Corpus): Promise<number> {
  const { data } = await admin.json<{ data: TenantCache[] }>("GET", "/admin/v1/cache");
  return data.find((row) => row.tenant_id === owner.id)?.blocks ?? 0;
}

async function isFound({ owner: { client }, storeId }: { readonly owner: { client: HttpClient }; storeId: string }) {
  try {
    const search = { query: "fragment w1 w2", max_num_results: 10 };
    const path = `/v1/vector_stores/${storeId}/search`;
    return (await client.json<{ data: unknown[] }>("POST", path, search)).data.length > 0;
  } catch (error) {
    if (error instanceof HttpError && error.status === 404) return false;
    throw error;
  }
}

/**
 * Places in all files of the data folder, the database's log among them, that hold text or index terms of the corpus.
 */
function places({ dataDir }: TestServer, { patterns }: Corpus): number {
  let count = 0;
  for (const name of readdirSync(dataDir, { recursive: true, encoding: "utf8" })) {
    const bytes = readIfThere(join(dataDir, name));
    for (const pattern of patterns) {
      const next = (from: number): number => bytes.indexOf(pattern, from, "latin1");
      for (let at = next(0); at >= 0; at = next(at + 1)) count += 1;
    }
  }
  return count;
}

/**
 * Whether a file of the data folder holds one of the patterns. `grep` looks for all of them in one pass and in a process
 * of its own: looked for here, one after the other in hundreds of megabytes, they held up every other look for seconds.
 * @param patterns one character a byte
 */
async function isAnywhere({ dataDir }: TestServer, patterns: readonly string[]): Promise<boolean> {
  const list = Buffer.from(patterns.map(longestLine).join("\n"), "latin1");
  const grep = Bun.spawn(["grep", "-rqaF", "-f", "-", dataDir], {
    ...{ stdin: list, stdout: "ignore", stderr: "ignore" },
    env: { ...process.env, LC_ALL: "C" },
  });
  // 1 says that all was read and nothing found. A file that is removed meanwhile makes it 2: it is asked again.
  return (await grep.exited) !== 1;
}

/** A list of patterns has one a line, so of a key that holds line ends its longest part is looked for. */
function longestLine(pattern: string): string {
  const lines = pattern.split("\n").toSorted((one, other) => other.length - one.length);
  return lines[0] ?? pattern;
}

function readIfThere(path: string): Buffer {
  try {
    return statSync(path).isFile() ? readFileSync(path) : Buffer.alloc(0);
  } catch {
    return Buffer.alloc(0);
  }
}

export const deleteBench: Bench = {
  name: "delete",
  summary:
    "A vector store of 100,000 fragments is deleted: until its index, KV in every tier and text are gone, and who waits",
  options: {
    fragments: `N  fragments of the store (default ${defaultFragments})`,
    prepared: `N  of them with KV on the worker (default ${defaultPrepared})`,
    bucket: "KIND  KV files are copied to a bucket too: memory, in this process, or radosgw, Ceph's server",
  },
  run,
};
