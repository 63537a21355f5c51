/** Whose document is read next, and what a large one of one tenant does to the others'. */
import { afterEach, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { deflateSync } from "node:zlib";
import { attachFile, type CorpusFileRow, completeFile, nextPendingFile } from "../../../db/corpus-files.ts";
import type { TenantId } from "../../../db/ids.ts";
import { corpusLimits } from "../../../gateway/corpus/base/limits.ts";
import { Extractor } from "../../../gateway/corpus/ingest/extractor.ts";
import { IngestLanes, type Lane } from "../../../gateway/corpus/ingest/lanes.ts";
import { pdfOf } from "../../extract/documents.ts";
import { createWorld, type World } from "../world.ts";

let world: World;

beforeEach(() => {
  world = createWorld();
});
afterEach(() => world.remove());

interface Owner {
  readonly tenantId: TenantId;
  readonly store: ReturnType<World["corpus"]["corpora"]["create"]>;
}

/** In the order of their turns. */
function owners(count: number): readonly Owner[] {
  const ids = Array.from({ length: count }, (_, i) => world.tenants.create(`tenant ${i}`).id).sort();
  return ids.map((tenantId) => ({
    tenantId,
    store: world.corpus.corpora.create(tenantId, { name: "", metadata: {} }),
  }));
}

async function upload({ tenantId }: Owner, filename: string, content: string | Uint8Array): Promise<string> {
  const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content;
  return (await world.corpus.files.upload(tenantId, { filename, purpose: "assistants", mediaType: "", bytes })).id;
}

async function attach(owner: Owner, fileIds: readonly string[]): Promise<void> {
  const requests = fileIds.map((fileId) => {
    return { fileId, attributes: {}, chunking: { maxTokens: 64, overlapTokens: 0 } };
  });
  await world.corpus.corpusFiles.attach(owner.store, requests, "file_ids");
}

const statusOf = (owner: Owner, fileId: string) => world.corpus.corpusFiles.get(owner.store, fileId).status;
const yieldToOthers = () => new Promise<void>((resolve) => setImmediate(resolve));

/** Between looks a process that reads a document has the core. */
async function untilSettled(owner: Owner, fileId: string): Promise<void> {
  while (statusOf(owner, fileId) === "in_progress") await Bun.sleep(1);
}

/** A text of some MB, in sentences. */
const longText = (chars: number) =>
  Array.from({ length: Math.ceil(chars / 40) }, (_, i) => `Sentence ${i} of a very long text. `).join("");

describe("a large document of one tenant", () => {
  test("text: another tenant's documents are ingested meanwhile", async () => {
    const [large, small] = owners(2) as [Owner, Owner];
    const long = await upload(large, "long.txt", longText(6 * 1024 * 1024));
    await attach(large, [long]);
    const begun = () => world.db.client.query("select 1 from fragments limit 1").get() !== null;
    while (!begun()) await yieldToOthers();
    const files = [await upload(small, "a.txt", "One sentence."), await upload(small, "b.html", "<p>Another.</p>")];
    await attach(small, files);
    for (const file of files) await untilSettled(small, file);
    expect(files.map((file) => statusOf(small, file))).toEqual(["completed", "completed"]);
    expect(statusOf(large, long)).toBe("in_progress");
  }, 60_000);

  test("bombs, as many as there are: the other's are read after one short try", async () => {
    const [bomber, small] = owners(2) as [Owner, Owner];
    const page = deflateSync(Buffer.alloc(100 * 1024 * 1024, "BT /F1 12 Tf (a lot) Tj ET "), { level: 1 });
    const bombs: string[] = [];
    for (let i = 0; i < 4; i++) bombs.push(await upload(bomber, `${i}.pdf`, pdfOf([page])));
    const file = await upload(small, "b.html", "<p>A sentence.</p>");
    await attach(bomber, bombs);
    await attach(small, [file]);
    await untilSettled(small, file);
    expect(statusOf(small, file)).toBe("completed");
    expect(bombs.map((bomb) => statusOf(bomber, bomb))).toEqual(bombs.map(() => "in_progress"));
  }, 60_000);

  test("is whole, also when the server was stopped in its middle", async () => {
    const [owner] = owners(1) as [Owner];
    const text = longText(corpusLimits.quickTextChars + 1);
    const file = await upload(owner, "long.txt", text);
    await attach(owner, [file]);
    const count = () => world.db.client.query<{ n: number }, []>("select count(*) n from fragments").get()?.n ?? 0;
    while (count() < 64) await yieldToOthers();
    expect(statusOf(owner, file)).toBe("in_progress");
    await world.close();
    world = createWorld(world.dir);
    await world.corpus.start();
    await world.corpus.idle();
    expect(statusOf(owner, file)).toBe("completed");
    expect(world.corpus.corpusFiles.texts(owner.store, file).join("")).toBe(text);
  }, 60_000);

  test("another tenant's large one has its turns meanwhile", async () => {
    const [huge, large] = owners(2) as [Owner, Owner];
    const [first, second] = [
      await upload(huge, "huge.md", "- a\n".repeat(1024 * 1024)),
      await upload(large, "large.txt", longText(corpusLimits.quickTextChars + 1)),
    ];
    await attach(huge, [first]);
    const begun = () => world.db.client.query("select 1 from fragments limit 1").get() !== null;
    while (!begun()) await yieldToOthers();
    await attach(large, [second]);
    await untilSettled(large, second);
    expect(statusOf(large, second)).toBe("completed");
    expect(statusOf(huge, first)).toBe("in_progress");
  }, 60_000);

  test("ends at once when its file, its store or its tenant is deleted, also while a process reads it", async () => {
    let reading = 0;
    const extract = spyOn(Extractor.prototype, "extract").mockImplementation((_kind, _bytes, signal) => {
      reading += 1;
      return new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    });
    const ends: readonly ((owner: Owner, file: string) => void)[] = [
      ({ tenantId }, file) => world.corpus.files.delete(tenantId, file),
      ({ tenantId, store }) => world.corpus.corpora.delete(tenantId, store.id),
      ({ store }, file) => world.corpus.corpusFiles.detach(store, file),
      ({ tenantId }) => {
        world.tenants.delete(tenantId);
        world.corpus.tenantDeleted(tenantId);
      },
    ];
    try {
      for (const [i, owner] of owners(ends.length).entries()) {
        const file = await upload(owner, "a.pdf", pdfOf([Buffer.from("BT ET")]));
        await attach(owner, [file]);
        while (reading === i) await yieldToOthers();
        ends[i]?.(owner, file);
        await world.corpus.idle();
      }
      expect(reading).toBe(ends.length);
      expect(world.logged.filter((line) => line.startsWith("error"))).toEqual([]);
    } finally {
      extract.mockRestore();
    }
  });
});

test("vectors: a large document's are made although its fragments are older than those of one that was done first", async () => {
  await world.close();
  const embedder = {
    card: () => Promise.resolve({ modelId: "ones", dimensions: 8 }),
    embed: (texts: readonly string[]) => Promise.resolve(texts.map(() => new Float32Array(8).fill(1))),
  };
  world = createWorld(world.dir, { embedder });
  const [large, small] = owners(2) as [Owner, Owner];
  const long = await upload(large, "long.txt", longText(2 * corpusLimits.quickTextChars));
  const file = await upload(small, "a.txt", "One sentence.");
  const count = (what: string) => world.db.client.query<{ n: number }, []>(`select count(*) n from ${what}`).get()?.n;
  await attach(large, [long]);
  while (count("fragments") === 0) await yieldToOthers();
  await attach(small, [file]);
  while (count("fragment_vectors") === 0) await yieldToOthers();
  expect(statusOf(large, long)).toBe("in_progress");
  await world.corpus.idle();
  expect(count("fragment_vectors")).toBe(count("fragments") as number);
}, 60_000);

test("vectors: another tenant's file has its turn beside a large one's", async () => {
  await world.close();
  const order: string[] = [];
  const embedder = {
    card: () => Promise.resolve({ modelId: "ones", dimensions: 8 }),
    embed: async (texts: readonly string[]) => {
      order.push(...texts.map((text) => (text.startsWith("Another") ? "small" : "large")));
      await yieldToOthers();
      return texts.map(() => new Float32Array(8).fill(1));
    },
  };
  world = createWorld(world.dir, { embedder });
  const [large, small] = owners(2) as [Owner, Owner];
  const [long, file] = [await upload(large, "long.txt", longText(200_000)), await upload(small, "a.txt", "Another.")];
  await attach(large, [long]);
  while (order.length === 0) await yieldToOthers();
  const before = order.length;
  await attach(small, [file]);
  await untilSettled(small, file);
  const since = order.length;
  await world.corpus.idle();
  // A turn is for so many fragments.
  const atOnce = 32;
  expect(before).toBeLessThan(10 * atOnce);
  expect(order.slice(since).indexOf("small")).toBeLessThanOrEqual(atOnce);
  expect(order.length).toBeGreaterThan(since + 5 * atOnce);
}, 60_000);

/** Rows to be ingested, and a record of who was asked to ingest them. */
function pendingRows(owner: Owner, count: number): readonly CorpusFileRow[] {
  const { tenantId, store } = owner;
  const fileOf = (i: number) => {
    const id = `file_${tenantId}_${i}`;
    world.db.client
      .query(
        `insert into files (id, tenant_id, filename, purpose, media_type, byte_count, sha256, created_at)
         values (?, ?, ?, 'assistants', '', 1, ?, 0)`,
      )
      .run(id, tenantId, id, id);
    return id as CorpusFileRow["fileId"];
  };
  const chunking = { maxChunkTokens: 64, overlapTokens: 0 };
  return Array.from({ length: count }, (_, i) =>
    attachFile(world.db, {
      corpusId: store.id,
      fileId: fileOf(i),
      tenantId,
      attributes: {},
      ...chunking,
      createdAt: 0,
    }),
  );
}

describe("the order", () => {
  /** What was ingested, `quick 0.2`: the second lane's name, the tenant's number and its file's. */
  async function orderOf(rows: readonly (readonly CorpusFileRow[])[], isLarge: (name: string) => boolean) {
    const names = new Map(rows.flatMap((own, tenant) => own.map((row, i) => [row.seq, `${tenant}.${i}`] as const)));
    const order: string[] = [];
    const ingest = async function* (row: CorpusFileRow, lane: Lane): AsyncGenerator<undefined, boolean> {
      const name = names.get(row.seq) ?? "";
      order.push(`${lane} ${name}`);
      for (let turns = 0; turns < (lane === "large" ? 60 : 1); turns++) {
        await yieldToOthers();
        yield;
      }
      if (lane === "quick" && isLarge(name)) return false;
      return completeFile(world.db, row, 1);
    };
    const lanes = new IngestLanes(world.db, () => undefined, ingest);
    lanes.wake();
    await lanes.idle();
    expect(nextPendingFile(world.db, "")).toBeUndefined();
    return order;
  }

  test("tenants take turns, each with its oldest", async () => {
    const rows = owners(3).map((owner, tenant) => pendingRows(owner, [4, 1, 2][tenant] ?? 0));
    expect(await orderOf(rows, () => false)).toEqual(
      ["0.0", "1.0", "2.0", "0.1", "2.1", "0.2", "0.3"].map((name) => `quick ${name}`),
    );
  });

  test("large ones take turns too, and a tenant whose large one waits has no turn among the quick", async () => {
    const rows = owners(3).map((owner, tenant) => pendingRows(owner, [5, 2, 12][tenant] ?? 0));
    const order = await orderOf(rows, (name) => !name.startsWith("2."));
    const large = order.filter((step) => step.startsWith("large"));
    expect(large).toEqual(["0.0", "1.0", "0.1", "1.1", "0.2", "0.3", "0.4"].map((name) => `large ${name}`));
    // Each large one was tried once, and the third tenant's were done before the second large one ended.
    expect(order.filter((step) => step.startsWith("quick"))).toHaveLength(5 + 2 + 12);
    expect(order.indexOf("quick 2.11")).toBeLessThan(order.indexOf("large 0.1"));
  });

  test("a lane that the database holds up leaves the file to be tried again, once", async () => {
    const rows = owners(1).map((owner) => pendingRows(owner, 1));
    let failures = 1;
    const isLarge = () => {
      if (failures-- > 0) throw new Error("held up");
      return true;
    };
    expect(await orderOf(rows, isLarge)).toEqual(["quick 0.0", "quick 0.0", "large 0.0"]);
  });
});

test("finding the next file costs the same however many wait", () => {
  const [first, second] = owners(2) as [Owner, Owner];
  const [oldest] = pendingRows(first, 3);
  pendingRows(second, 1);
  expect(nextPendingFile(world.db, "")?.seq).toBe(oldest?.seq as number);
  expect(nextPendingFile(world.db, "", [oldest?.seq ?? 0])?.tenantId).toBe(first.tenantId);
  expect(nextPendingFile(world.db, first.tenantId)?.tenantId).toBe(second.tenantId);
  expect(nextPendingFile(world.db, second.tenantId)).toBeUndefined();
  const plan = world.db.client
    .query<{ detail: string }, []>(
      `explain query plan select * from corpus_files where status = 'in_progress' and tenant_id > '' and seq <> 0
       order by tenant_id, seq limit 1`,
    )
    .all()
    .map(({ detail }) => detail)
    .join();
  expect(plan).toContain("corpus_files_pending");
  expect(plan).not.toContain("TEMP B-TREE");
});
