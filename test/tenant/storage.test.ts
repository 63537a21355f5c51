/** The account of stored bytes is what the rows are, and no number of requests at the same time goes over it. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { insertBatch, recordResult, updateBatch } from "../../db/batches.ts";
import { newId, type TenantId } from "../../db/ids.ts";
import { openDb } from "../../db/open.ts";
import { insertResponse } from "../../db/responses.ts";
import { storedBytes } from "../../db/storage.ts";
import { ApiError } from "../../gateway/base/errors.ts";
import { TenantStorage } from "../../gateway/tenant/storage.ts";
import { createWorld, ingestText, type World } from "../corpus/world.ts";

let world: World;
let tenantId: TenantId;
beforeEach(() => {
  world = createWorld();
  tenantId = world.tenants.create("t").id;
});
afterEach(() => world.remove());

const codeOf = (run: () => unknown): string => {
  try {
    run();
    return "done";
  } catch (error) {
    if (error instanceof ApiError) return error.code;
    throw error;
  }
};
const upload = (letters: number, filename = "a.txt") => {
  const bytes = new Uint8Array(letters).fill(97);
  return world.corpus.files.upload(tenantId, { filename, purpose: "assistants", mediaType: "text/plain", bytes });
};
const used = () => storedBytes(world.db, tenantId);
const setLimit = (storageBytes: number) => {
  const unset = {
    requestsPerMinute: null,
    tokensPerMinute: null,
    concurrency: null,
    kvBytes: null,
    kvDiskBytes: null,
    kvS3Bytes: null,
  };
  const budget = { tokensPerDay: null, tokensPerMonth: null };
  world.tenants.limits.setTenant(tenantId, { ...unset, ...budget, storageBytes });
};
const nothing = { files: 0, uploads: 0, texts: 0, responses: 0, batches: 0 };

describe("stored bytes", () => {
  test("of files count until they are deleted, of texts until they are swept, also for a next start", async () => {
    const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
    const text = "the same words again. ".repeat(40);
    const file = await ingestText(world, store, "b.txt", text);
    await upload(1_000);
    await upload(1_000);
    expect(used()).toEqual({ ...nothing, files: 1_000 + text.length, texts: text.length });
    const again = openDb(`${world.dir}/spangate.db`);
    expect(storedBytes(again, tenantId)).toEqual(used());
    again.close();
    world.corpus.files.delete(tenantId, file.id);
    expect(used()).toEqual({ ...nothing, files: 1_000, texts: text.length });
    await world.corpus.idle();
    expect(used()).toEqual({ ...nothing, files: 1_000 });
    world.tenants.delete(tenantId);
    expect(used()).toEqual(nothing);
  });

  test("of uploads in parts are those that they were made for, until they end", async () => {
    const { uploads } = world.corpus;
    const request = { filename: "a", purpose: "assistants", mediaType: "text/plain", byteCount: 6 };
    const [first, second] = [uploads.create(tenantId, request), uploads.create(tenantId, request)];
    const staged = await uploads.stagePart(6);
    await staged.add(new Uint8Array(6));
    const part = await uploads.addPart(tenantId, first.id, staged);
    expect(used()).toEqual({ ...nothing, uploads: 12 });
    await uploads.complete(tenantId, first.id, { partIds: [part.id], md5: undefined });
    uploads.cancel(tenantId, second.id);
    expect(used()).toEqual({ ...nothing, files: 6 });
  });

  test("of responses and of the results of open batches count as well", () => {
    const { db } = world;
    const fields = { id: newId("response"), tenantId, previousId: null, usedSeqs: [], createdAt: 1 };
    insertResponse(db, { ...fields, body: "{}", inputItems: "[123]" }, { rows: 9, bytes: 99 });
    const times = { createdAt: 1, expiresAt: 9, metadata: null, keyId: newId("apiKey"), inputFileId: newId("file") };
    const batch = insertBatch(db, { ...times, id: newId("batch"), tenantId, endpoint: "/v1/embeddings" }, 9);
    const seq = batch?.seq ?? 0;
    updateBatch(db, seq, ["validating"], { status: "in_progress" });
    recordResult(db, seq, { line: 1, isError: false, body: "12345678" });
    expect(used()).toEqual({ ...nothing, responses: 7, batches: 8 });
    updateBatch(db, seq, ["in_progress"], { status: "completed" });
    expect(used()).toEqual({ ...nothing, responses: 7 });
  });
});

describe("what a tenant may store", () => {
  test("is kept free for what is coming, so that none of many goes over", async () => {
    setLimit(10_000);
    const { storage } = world;
    const releases = [storage.reserve(tenantId, 4_000), storage.reserve(tenantId, 4_000)];
    expect(codeOf(() => storage.reserve(tenantId, 4_000))).toBe("quota_exceeded");
    // Another tenant has its own.
    storage.reserve(world.tenants.create("u").id, 4_000)();
    releases[0]?.();
    releases[0]?.();
    expect(codeOf(() => storage.reserve(tenantId, 6_001))).toBe("quota_exceeded");
    await upload(4_000);
    expect(codeOf(() => storage.reserve(tenantId, 2_001))).toBe("quota_exceeded");
    expect(codeOf(() => storage.reserve(tenantId, 2_000))).toBe("done");
  });

  test("names what has filled it", async () => {
    setLimit(3_000);
    await upload(2_500);
    expect(() => world.storage.reserve(tenantId, 501)).toThrow(/2500 of the 3000 bytes.*\(files 2500\).*501 more/);
  });

  test("without a limit is as much as it leaves free, so that nobody fills the disk alone", async () => {
    const { storage, disk } = world;
    disk.freeBytes = 10_000;
    await upload(4_000);
    disk.freeBytes -= 4_000;
    expect(storage.use(tenantId).limitBytes).toBe(5_000);
    expect(codeOf(() => storage.reserve(tenantId, 1_001))).toBe("quota_exceeded");
    expect(codeOf(() => storage.reserve(world.tenants.create("u").id, 3_000))).toBe("done");
    const set = new TenantStorage(world.db, {
      disk: { availableBytes: () => 10_000, availableForSmall: () => 10_000 },
      limitOf: () => null,
      defaultBytes: 9_000,
    });
    expect(set.use(tenantId).limitBytes).toBe(9_000);
  });

  test("is bounded by the disk whatever its limit says, and what is reserved counts for all", () => {
    setLimit(2 ** 40);
    const { storage, disk } = world;
    disk.freeBytes = 10_000;
    const other = world.tenants.create("u").id;
    const release = storage.reserve(tenantId, 8_000);
    expect(codeOf(() => storage.checkDisk(2_001))).toBe("storage_full");
    expect(codeOf(() => storage.reserve(other, 2_001))).toBe("storage_full");
    release();
    expect(codeOf(() => storage.reserve(other, 2_001))).toBe("done");
  });

  test("bounds texts in vector stores: a file attached to many is refused with a reason", async () => {
    const text = "some words of a text. ".repeat(100);
    setLimit(text.length * 2 + 10);
    const stores = [0, 1].map((at) => world.corpus.corpora.create(tenantId, { name: `s${at}`, metadata: {} }));
    for (const store of stores) await ingestText(world, store, "b.txt", text);
    const [first, second] = stores.map(
      ({ id }) =>
        world.corpus.corpusFiles.list(world.corpus.corpora.require(tenantId, id, "own"), { limit: 9, order: "asc" })
          .rows[0],
    );
    expect([first?.status, second?.status]).toEqual(["completed", "failed"]);
    expect(second?.errorMessage).toContain("The tenant has stored");
    expect(used().texts).toBe(text.length);
  });
});
