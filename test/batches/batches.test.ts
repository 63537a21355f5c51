/** Batches over a database, a content folder and an app that a test answers for. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { updateBatch } from "../../db/batches.ts";
import { ApiError } from "../../gateway/base/errors.ts";
import { batchLimits } from "../../gateway/batches/limits.ts";
import type { SendRequest } from "../../gateway/batches/requests.ts";
import { BatchService } from "../../gateway/batches/service.ts";
import type { Principal } from "../../gateway/tenant/principal.ts";
import { createWorld, type World } from "../corpus/world.ts";
import { syncedChanges } from "../support/synced-changes.ts";
import { wholeFile } from "../support/whole-file.ts";
import { endpoint, linesOf, until } from "./batch-file.ts";

let world: World;
let owner: Principal & { readonly tenantId: `tenant_${string}` };
let nowMs: number;
let services: BatchService[];
/** Ids of the lines that were sent, in their order. */
let sent: string[];
/** What a line is answered with. */
let answer: (customId: string, signal: AbortSignal) => Promise<Response> | Response;

const ok = (customId: string) =>
  Response.json({ said: customId, usage: { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7 } });

function open(): BatchService {
  const { db, storage, corpus, tenants } = world;
  const service = new BatchService({
    ...{ db, storage, files: corpus.files, apiKeys: tenants.apiKeys },
    nowMs: () => nowMs,
    log: () => undefined,
  });
  services.push(service);
  return service;
}
const send: SendRequest = async (request, { principal }) => {
  expect(principal.tenantId).toBe(owner.tenantId);
  expect([...principal.scopes]).toEqual(["inference"]);
  expect(new URL(request.url).pathname).toBe(endpoint);
  const { id } = (await request.json()) as { id: string };
  sent.push(id);
  return await answer(id, request.signal);
};
function started(): BatchService {
  const service = open();
  service.start(send);
  return service;
}

beforeEach(() => {
  world = createWorld();
  nowMs = Date.now();
  services = [];
  sent = [];
  answer = ok;
  const { id } = world.tenants.create("acme");
  const minter = { keyId: "key_0", tenantId: undefined, scopes: new Set(["inference", "corpus:read"] as const) };
  const { apiKey } = world.tenants.apiKeys.mint(minter, id, "k", ["inference", "corpus:read"]);
  owner = world.tenants.apiKeys.authenticate(apiKey) as typeof owner;
});
afterEach(async () => {
  for (const service of services) await service.stop();
  await world.remove();
});

async function upload(text: string | Uint8Array, purpose = "batch") {
  const bytes = typeof text === "string" ? new TextEncoder().encode(text) : text;
  return await world.corpus.files.upload(owner.tenantId, { filename: "b.jsonl", purpose, mediaType: "", bytes });
}
async function create(service: BatchService, text: string | Uint8Array) {
  const { id } = await upload(text);
  return service.create(owner, owner.tenantId, { inputFileId: id, endpoint, metadata: null });
}
const get = (service: BatchService, { id }: { readonly id: string }) => service.get(owner.tenantId, id);
async function readFile(id: string | null) {
  if (id === null) return [];
  return (await wholeFile(world.corpus.files.openPieces(owner.tenantId, id)))
    .toString()
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as { custom_id: string; response: { status_code: number } | null; error: unknown });
}
const results = () => world.db.client.query("select line from batch_results").all();

describe("a batch", () => {
  test("runs each line once, and puts what came into files in the order of its lines", async () => {
    answer = (id) => (id === "line-3" ? Response.json({ error: {} }, { status: 400 }) : ok(id));
    const service = started();
    const { id } = await create(service, linesOf(40));
    const { files } = world.corpus;
    const store = files.store.bind(files);
    const states: string[] = [];
    files.store = (tenantId, made) => {
      states.push(get(service, { id }).status);
      expect(() => service.cancel(owner.tenantId, id)).toThrow(expect.objectContaining({ code: "conflict" }));
      return store(tenantId, made);
    };
    await service.idle();
    expect(states).toEqual(["finalizing", "finalizing"]);
    const batch = get(service, { id });
    expect(batch).toMatchObject({ status: "completed", total: 40, completed: 39, failed: 1 });
    expect(batch).toMatchObject({ inputTokens: 195, outputTokens: 78 });
    expect(sent.toSorted()).toEqual(Array.from({ length: 40 }, (_, i) => `line-${i}`).toSorted());
    const output = await readFile(batch.outputFileId);
    const expected = Array.from({ length: 40 }, (_, i) => `line-${i}`).filter((name) => name !== "line-3");
    expect(output.map(({ custom_id: name }) => name)).toEqual(expected);
    expect(await readFile(batch.errorFileId)).toMatchObject([
      { custom_id: "line-3", response: { status_code: 400, body: { error: {} } }, error: null },
    ]);
    expect(world.corpus.files.get(owner.tenantId, batch.outputFileId ?? "")).toMatchObject({
      filename: `${id}_output.jsonl`,
      purpose: "batch_output",
    });
    expect(results()).toEqual([]);
  });

  test("syncs no line's result by itself: a line whose result is lost runs again", async () => {
    const service = started();
    const { id } = await create(service, linesOf(40));
    const synced = syncedChanges(world.db);
    await service.idle();
    expect(get(service, { id })).toMatchObject({ status: "completed", completed: 40 });
    expect(synced).not.toContain("recordResult");
    expect(synced).toContain("updateBatch");
  });

  test("a file that is wrong fails it, with the lines that are", async () => {
    const service = started();
    const bad = await create(service, `${linesOf(1)}\nno JSON`);
    const binary = await create(service, Uint8Array.of(0xff, 0xfe));
    await service.idle();
    expect(get(service, bad)).toMatchObject({ status: "failed", errors: [{ code: "invalid_json_line", line: 2 }] });
    expect(get(service, binary)).toMatchObject({ status: "failed", errors: [{ code: "invalid_file", line: null }] });
    expect(sent).toEqual([]);
  });

  test("what is refused for now is tried again, what the server fails three times", async () => {
    const tries = new Map<string, number>();
    answer = (id) => {
      const count = (tries.get(id) ?? 0) + 1;
      tries.set(id, count);
      if (id === "line-0" && count < 3) return Response.json({}, { status: count === 1 ? 429 : 503 });
      return id === "line-1" ? Response.json({}, { status: 500 }) : ok(id);
    };
    const service = started();
    const batch = await create(service, linesOf(3));
    await service.idle();
    expect(get(service, batch)).toMatchObject({ status: "completed", completed: 2, failed: 1 });
    expect(Object.fromEntries(tries)).toEqual({ "line-0": 3, "line-1": batchLimits.attempts, "line-2": 1 });
  });

  test("a stopped server's is gone on with: what has a result is not run again", async () => {
    const first = started();
    const held: (() => void)[] = [];
    answer = (id, signal) =>
      held.length < 4 && Number(id.slice(5)) >= 10
        ? new Promise((resolve) => {
            held.push(() => resolve(ok(id)));
            signal.addEventListener("abort", () => resolve(ok(id)));
          })
        : ok(id);
    const batch = await create(first, linesOf(30));
    await until(() => held.length === 4 && sent.length === 30);
    await first.stop();
    expect(get(first, batch)).toMatchObject({ status: "in_progress", completed: 26 });
    const before = new Set(sent);
    expect(before.size).toBe(30);
    sent = [];
    const second = started();
    await second.idle();
    expect(sent).toHaveLength(4);
    const ended = get(second, batch);
    expect(ended).toMatchObject({ status: "completed", completed: 30, failed: 0 });
    expect(new Set((await readFile(ended.outputFileId)).map(({ custom_id: id }) => id)).size).toBe(30);
  });

  test("one that was stopped while its files were written is written once", async () => {
    const first = started();
    const batch = await create(first, linesOf(3));
    await first.idle();
    const { seq, outputFileId } = get(first, batch);
    await first.stop();
    // As if the row had not been written: the results are there, the file as well.
    const insert = world.db.client.query("insert into batch_results values (?, ?, 0, ?)");
    for (const [i, line] of (await readFile(outputFileId)).entries()) insert.run(seq, i + 1, JSON.stringify(line));
    updateBatch(world.db, seq, ["completed"], { status: "finalizing", outputFileId: null, completedAt: null });
    const second = started();
    await second.idle();
    expect(get(second, batch)).toMatchObject({ status: "completed", outputFileId });
    expect(sent).toHaveLength(3);
  });

  test("is cancelled with what it has, at once", async () => {
    const service = started();
    answer = (id, signal) =>
      Number(id.slice(5)) < 5
        ? ok(id)
        : new Promise((resolve) => signal.addEventListener("abort", () => resolve(ok(id))));
    const batch = await create(service, linesOf(30));
    await until(() => get(service, batch).completed === 5);
    expect(service.cancel(owner.tenantId, batch.id).status).toBe("cancelling");
    await service.idle();
    const ended = get(service, batch);
    expect(ended).toMatchObject({ status: "cancelled", completed: 5, errorFileId: null });
    expect(await readFile(ended.outputFileId)).toHaveLength(5);
    expect(service.cancel(owner.tenantId, batch.id).status).toBe("cancelled");
    const done = await create(service, linesOf(1));
    await service.idle();
    expect(() => service.cancel(owner.tenantId, done.id)).toThrow(ApiError);
  });

  test("expires: lines that were not run say so", async () => {
    const batch = await create(open(), linesOf(3));
    nowMs += batchLimits.windowMs;
    const service = started();
    await service.idle();
    const ended = get(service, batch);
    expect(ended).toMatchObject({ status: "expired", completed: 0, failed: 3, outputFileId: null });
    expect(sent).toEqual([]);
    expect(await readFile(ended.errorFileId)).toMatchObject([
      {},
      {},
      { custom_id: "line-2", response: null, error: { code: "batch_expired" } },
    ]);
  });

  test("ends when its key is revoked, and when its file is deleted", async () => {
    const service = started();
    for (const [end, code] of [
      [(fileId: string) => world.corpus.files.delete(owner.tenantId, fileId), "input_file_deleted"],
      [() => world.db.client.run("update api_keys set revoked_at = 1"), "invalid_api_key"],
    ] as const) {
      const release = Promise.withResolvers<void>();
      answer = async (id) => {
        await release.promise;
        return ok(id);
      };
      sent = [];
      const batch = await create(service, linesOf(30));
      await until(() => sent.length === batchLimits.linesPerTenant);
      end(batch.inputFileId);
      release.resolve();
      await service.idle();
      const ended = get(service, batch);
      expect(ended).toMatchObject({ status: "failed", errors: [{ code }], completed: batchLimits.linesPerTenant });
      expect(await readFile(ended.outputFileId)).toHaveLength(batchLimits.linesPerTenant);
    }
  });

  test("has results up to so many bytes", async () => {
    const body = "x".repeat(batchLimits.maxOutputBytes / 4);
    answer = (id) => Response.json({ id, body });
    const service = started();
    const batch = await create(service, linesOf(6));
    await service.idle();
    const ended = get(service, batch);
    expect(ended).toMatchObject({ status: "completed", completed: 3, failed: 3 });
    for (const { error } of await readFile(ended.errorFileId))
      expect(error).toMatchObject({ code: "batch_output_limit" });
  });

  test("goes with its tenant", async () => {
    const service = started();
    const release = Promise.withResolvers<void>();
    answer = async (id) => {
      await release.promise;
      return ok(id);
    };
    const batch = await create(service, linesOf(30));
    await until(() => sent.length === batchLimits.linesPerTenant);
    world.tenants.delete(owner.tenantId);
    release.resolve();
    await service.idle();
    expect(() => get(service, batch)).toThrow(ApiError);
    expect(sent).toHaveLength(batchLimits.linesPerTenant);
    world.corpus.tenantDeleted(owner.tenantId);
    await world.corpus.idle();
    expect(results()).toEqual([]);
    expect(world.db.client.query("select id from files where deleted_at is null").all()).toEqual([]);
  });
});

describe("making one", () => {
  test("takes a file of the tenant's own that was uploaded for it", async () => {
    const service = started();
    const make = (inputFileId: string) =>
      service.create(owner, owner.tenantId, { inputFileId, endpoint, metadata: null });
    const { id: other } = await upload("text", "assistants");
    expect(() => make(other)).toThrow(expect.objectContaining({ code: "invalid_value", param: "input_file_id" }));
    expect(() => make("file-nobody")).toThrow(expect.objectContaining({ code: "not_found", param: "input_file_id" }));
    const { id: stranger } = world.tenants.create("other");
    const bytes = new TextEncoder().encode(linesOf(1));
    const theirs = { filename: "b.jsonl", purpose: "batch", mediaType: "", bytes };
    const { id: their } = await world.corpus.files.upload(stranger, theirs);
    expect(() => make(their)).toThrow(expect.objectContaining({ code: "not_found", param: "input_file_id" }));
  });

  test("so many may wait, and others' are not seen", async () => {
    const service = open();
    const first = await create(service, linesOf(1));
    for (let i = 1; i < batchLimits.maxOpenPerTenant; i++) await create(service, linesOf(1));
    await expect(create(service, linesOf(1))).rejects.toMatchObject({ code: "quota_exceeded" });
    const { id: stranger } = world.tenants.create("other");
    expect(() => service.get(stranger, first.id)).toThrow(expect.objectContaining({ code: "not_found" }));
    expect(service.list(stranger, { limit: 10, order: "desc" }).rows).toEqual([]);
    expect(service.list(owner.tenantId, { limit: 10, order: "asc" }).rows[0]?.id).toBe(first.id);
  });
});
