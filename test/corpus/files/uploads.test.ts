/** Files that come in parts: what becomes of parts in each end of an upload, over restarts, and when time is over. */
import { afterEach, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { newId, type TenantId } from "../../../db/ids.ts";
import { corpusLimits } from "../../../gateway/corpus/base/limits.ts";
import { ContentStore } from "../../../gateway/corpus/files/content-store.ts";
import { UploadService } from "../../../gateway/corpus/files/uploads.ts";
import { until } from "../../support/until.ts";
import { wholeFile } from "../../support/whole-file.ts";
import { createWorld, type World } from "../world.ts";

let dir: string;
let world: World;
let uploads: UploadService;
let tenantId: TenantId;
let nowMs: number;

/** The service of a server that has just been started over the folder. */
async function open(): Promise<UploadService> {
  const { db, storage, corpus } = world;
  const parts = new ContentStore(join(dir, "own-parts"), "uploadPart");
  const deps = { db, storage, parts, files: corpus.files, nowMs: () => nowMs, log: () => undefined };
  const service = new UploadService({ ...deps, onTenantSwept: () => corpus.tenantDeleted(tenantId) });
  await service.start();
  return service;
}

beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), "spangate-uploads-"));
  world = createWorld(dir);
  nowMs = Date.now();
  tenantId = world.tenants.create("acme").id;
  uploads = await open();
});
afterEach(async () => {
  await uploads.stop();
  await world.close();
  rmSync(dir, { recursive: true, force: true });
});

const bytesOf = (text: string): Uint8Array => new TextEncoder().encode(text);
const create = (text: string, filename = "a.txt") => {
  const request = { filename, purpose: "assistants", mediaType: "text/plain", byteCount: text.length };
  return uploads.create(tenantId, request);
};
const add = async (id: string, text: string, owner = tenantId) => {
  const staged = await uploads.stagePart(text.length);
  await staged.add(bytesOf(text));
  return await uploads.addPart(owner, id, staged);
};
const complete = (id: string, parts: readonly { readonly id: string }[], md5?: string) =>
  uploads.complete(tenantId, id, { partIds: parts.map((part) => part.id), md5 });
const md5Of = (text: string): string => new Bun.CryptoHasher("md5").update(text).digest("hex");
const onDisk = (): string[] => readdirSync(join(dir, "own-parts"));
const textOf = async (fileId: string | null): Promise<string> => {
  return (await wholeFile(world.corpus.files.openPieces(tenantId, fileId ?? ""))).toString();
};

describe("a completed upload", () => {
  test("is a file of its parts in the order given, and its parts go", async () => {
    const { id } = create("one two three");
    const made = await Promise.all(["three", "one ", "two "].map((text) => add(id, text)));
    const [third, first, second] = made;
    if (first === undefined || second === undefined || third === undefined) throw new Error("no parts");
    expect(onDisk().toSorted()).toEqual(made.map((part) => part.id).toSorted());
    const row = await complete(id, [first, second, third], md5Of("one two three").toUpperCase());
    expect(row.status).toBe("completed");
    expect(await textOf(row.fileId)).toBe("one two three");
    await uploads.idle();
    expect(onDisk()).toEqual([]);
    // A call whose answer was lost is answered as before, and makes no second file.
    expect(await complete(id, [first])).toEqual(row);
    expect(world.db.client.query("select id from files").all()).toHaveLength(1);
  });

  test("is the file that was uploaded whole, where the tenant has it", async () => {
    const whole = { filename: "a.txt", purpose: "assistants", mediaType: "text/plain", bytes: bytesOf("one two") };
    const file = await world.corpus.files.upload(tenantId, whole);
    const { id } = create("one two");
    const { fileId } = await complete(id, [await add(id, "one "), await add(id, "two")]);
    expect(fileId).toBe(file.id);
  });

  test("may have the same part more than once, and each is stored once", async () => {
    const { id } = create("abab");
    const [first, again] = [await add(id, "ab"), await add(id, "ab")];
    expect(again).toEqual(first);
    expect(onDisk()).toEqual([first.id]);
    expect(await textOf((await complete(id, [first, again])).fileId)).toBe("abab");
  });
});

describe("what is refused, and leaves the upload as it was", () => {
  test("another number of bytes, another checksum, parts of another upload", async () => {
    const { id } = create("abc");
    const other = create("abc", "b.txt");
    const [part, rest, stranger] = [await add(id, "ab"), await add(id, "c"), await add(other.id, "c")];
    const refused = (parts: readonly { readonly id: string }[], md5?: string) =>
      complete(id, parts, md5).then(
        () => undefined,
        (error: unknown) => error,
      );
    expect(await refused([part])).toMatchObject({ code: "invalid_value", param: "part_ids" });
    expect(await refused([part, rest, rest])).toMatchObject({ code: "invalid_value", param: "part_ids" });
    expect(await refused([part, stranger])).toMatchObject({ code: "not_found", param: "part_ids[1]" });
    expect(await refused([part, { id: "../secret" }])).toMatchObject({ code: "not_found", param: "part_ids[1]" });
    expect(await refused([part, rest], md5Of("abd"))).toMatchObject({ code: "invalid_value", param: "md5" });
    expect((await complete(id, [part, rest], md5Of("abc"))).status).toBe("completed");
  });

  test("more bytes or parts than there may be; their bytes do not stay", async () => {
    const { id } = create("abc");
    const { id: part } = await add(id, "ab");
    await expect(add(id, "cd")).rejects.toMatchObject({ code: "invalid_value", param: "data" });
    // Of two at the same time that do not fit together, one is taken.
    const both = await Promise.allSettled([add(id, "c"), add(id, "d")]);
    expect(both.map(({ status }) => status).toSorted()).toEqual(["fulfilled", "rejected"]);
    expect(onDisk()).toHaveLength(2);
    expect(onDisk()).toContain(part);
    const many = create("x".repeat(corpusLimits.maxPartsPerUpload + 1));
    const insert = world.db.client.query("insert into upload_parts values (null, ?, ?, ?, 1, 1)");
    for (let i = 0; i < corpusLimits.maxPartsPerUpload; i++) insert.run(newId("uploadPart"), many.seq, `${i}`);
    await expect(add(many.id, "x")).rejects.toMatchObject({ code: "invalid_value", param: "data" });
  });

  test("more uploads at the same time than there may be, until one ends", () => {
    const made = Array.from({ length: corpusLimits.maxOpenUploadsPerTenant }, () => create("a"));
    expect(() => create("a")).toThrow(expect.objectContaining({ code: "quota_exceeded" }));
    const other = world.tenants.create("other").id;
    const request = { filename: "a", purpose: "batch", mediaType: "a/b", byteCount: 1 };
    expect(uploads.create(other, request).status).toBe("pending");
    uploads.cancel(tenantId, made[0]?.id ?? "");
    expect(create("a").status).toBe("pending");
  });

  test("names that no file may have", () => {
    for (const name of ["", "a\nb", "x".repeat(256)]) {
      expect(() => create("a", name)).toThrow(expect.objectContaining({ code: "invalid_value", param: "filename" }));
    }
  });
});

describe("an upload that ends another way", () => {
  const isOver = async (id: string, status: string): Promise<void> => {
    expect(uploads.get(tenantId, id).status).toBe(status as "expired");
    await expect(add(id, "z")).rejects.toMatchObject({ code: "conflict" });
    await expect(complete(id, [])).rejects.toMatchObject({ code: "conflict" });
    await uploads.idle();
    expect(onDisk()).toEqual([]);
    expect(world.db.client.query("select id from upload_parts").all()).toEqual([]);
  };

  test("cancelled: its parts go, and a second call is answered as the first", async () => {
    const { id } = create("abc");
    await add(id, "ab");
    expect(uploads.cancel(tenantId, id).status).toBe("cancelled");
    expect(uploads.cancel(tenantId, id).status).toBe("cancelled");
    await isOver(id, "cancelled");
  });

  test("expired: an hour after it was made", async () => {
    const { id, createdAt, expiresAt } = create("abc");
    expect(expiresAt - createdAt).toBe(3_600_000);
    await add(id, "ab");
    nowMs = expiresAt - 1;
    expect(uploads.get(tenantId, id).status).toBe("pending");
    nowMs = expiresAt;
    // Before anything has swept it, too.
    await expect(add(id, "c")).rejects.toMatchObject({ code: "conflict" });
    expect(() => uploads.cancel(tenantId, id)).toThrow(expect.objectContaining({ code: "conflict" }));
    uploads.wake();
    await isOver(id, "expired");
  });

  test("expired: taken away when its time is over, without a call", async () => {
    const { id, expiresAt } = create("abc");
    await add(id, "ab");
    nowMs = expiresAt - 1;
    uploads.wake();
    await uploads.idle();
    expect(onDisk()).toHaveLength(1);
    nowMs = expiresAt;
    await until(() => onDisk().length === 0, "parts of an upload that has expired are gone", undefined, 5);
  });

  test("its tenant is deleted: nothing of it stays, and then not the tenant", async () => {
    const { id } = create("abc");
    await add(id, "ab");
    const done = create("z");
    await complete(done.id, [await add(done.id, "z")]);
    world.tenants.delete(tenantId);
    uploads.wake();
    await uploads.idle();
    await world.corpus.idle();
    expect(onDisk()).toEqual([]);
    for (const table of ["uploads", "upload_parts", "files", "tenants"]) {
      expect([table, world.db.client.query(`select seq from ${table}`).all()]).toEqual([table, []]);
    }
  });

  test("cannot be cancelled while its file is made", async () => {
    const { id } = create("ab");
    const part = await add(id, "ab");
    const completing = complete(id, [part]);
    expect(() => uploads.cancel(tenantId, id)).toThrow(expect.objectContaining({ code: "conflict" }));
    await expect(complete(id, [part])).rejects.toMatchObject({ code: "conflict" });
    nowMs += corpusLimits.uploadMs;
    uploads.wake();
    expect((await completing).status).toBe("completed");
  });
});

describe("a server that is started again", () => {
  test("goes on with what has come, and takes away what nobody was told of", async () => {
    const { id } = create("abcd");
    const first = await add(id, "ab");
    await uploads.stop();
    writeFileSync(join(dir, "own-parts", newId("uploadPart")), "never acknowledged");
    writeFileSync(join(dir, "own-parts", `${newId("uploadPart")}.tmp`), "half");
    uploads = await open();
    expect(onDisk()).toEqual([first.id]);
    expect(await textOf((await complete(id, [first, await add(id, "cd")])).fileId)).toBe("abcd");
  });

  test("an upload whose bytes are not there has expired", async () => {
    const [lost, whole] = [create("ab"), create("cd")];
    const part = await add(lost.id, "ab");
    await add(whole.id, "cd");
    await uploads.stop();
    rmSync(join(dir, "own-parts", part.id));
    uploads = await open();
    expect([lost, whole].map(({ id }) => uploads.get(tenantId, id).status)).toEqual(["expired", "pending"]);
  });
});

test("another tenant's upload is none", async () => {
  const { id } = create("ab");
  const stranger = world.tenants.create("other").id;
  expect(() => uploads.get(stranger, id)).toThrow(expect.objectContaining({ code: "not_found" }));
  expect(() => uploads.cancel(stranger, id)).toThrow(expect.objectContaining({ code: "not_found" }));
  await expect(add(id, "ab", stranger)).rejects.toMatchObject({ code: "not_found" });
  await expect(uploads.complete(stranger, id, { partIds: [], md5: undefined })).rejects.toMatchObject({
    code: "not_found",
  });
});

test("of uploads that have ended the newest stay", async () => {
  const ended = create("a");
  uploads.cancel(tenantId, ended.id);
  const insert = world.db.client.query(
    "insert into uploads values (null, ?, ?, 'a', 'batch', 'a/b', 1, 'cancelled', null, 1, 1, null)",
  );
  for (let i = 1; i < corpusLimits.keptUploadsPerTenant; i++) insert.run(newId("upload"), tenantId);
  create("a");
  expect(() => uploads.get(tenantId, ended.id)).toThrow(expect.objectContaining({ code: "not_found" }));
});

test("parts of tenants' ended uploads go in turns: one that ended many does not keep another's", async () => {
  const { client } = world.db;
  const many = 450;
  const owners = [tenantId, world.tenants.create("other").id].sort();
  const [first, second] = owners as [TenantId, TenantId];
  const end = (owner: TenantId, count: number): void => {
    const request = { filename: "a", purpose: "assistants", mediaType: "", byteCount: count };
    const { seq } = uploads.create(owner, request);
    const insert = client.query(
      "insert into upload_parts (id, upload_seq, sha256, byte_count, created_at) values (?, ?, ?, 1, 0)",
    );
    client.transaction(() => {
      for (let i = 0; i < count; i++) insert.run(newId("uploadPart"), seq, `${i}`);
      client.run("update uploads set status = 'cancelled' where seq = ?", [seq]);
    })();
  };
  const ownerOf = client.query<{ tenant_id: TenantId }, [string]>(
    "select u.tenant_id from upload_parts p join uploads u on u.seq = p.upload_seq where p.id = ?",
  );
  const remove = spyOn(ContentStore.prototype, "remove");
  const removed: (TenantId | undefined)[] = [];
  remove.mockImplementation((id: string) => {
    removed.push(ownerOf.get(id)?.tenant_id);
    return Promise.resolve();
  });
  try {
    end(first, many);
    end(second, 1);
    uploads.wake();
    await uploads.idle();
  } finally {
    remove.mockRestore();
  }
  expect(removed).toHaveLength(many + 1);
  expect(removed.indexOf(second)).toBe(100);
});
