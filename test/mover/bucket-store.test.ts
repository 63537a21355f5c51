/** Files into a bucket and back, over a bucket that fails in every way. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BucketStore } from "../../gateway/mover/bucket-store.ts";
import { MoverError } from "../../gateway/mover/protocol.ts";
import { type Bucket, openBucket, refusal } from "../support/bucket.ts";

const id = "ab".repeat(16);
const aside = `s3-${id}.tmp`;
const content = new Uint8Array(200_000).map((_, index) => index % 251);
const prefix = "kv/server/";
const [silenceMs, leastRate] = [150, 2_000];

let bucket: Bucket;
let folder = "";
beforeEach(() => {
  bucket = openBucket();
  folder = mkdtempSync(join(tmpdir(), "spangate mover "));
});
afterEach(async () => {
  await bucket.stop();
  rmSync(folder, { recursive: true, force: true });
});

function storeOf({ endpoint = bucket.endpoint, accessKeyId = "reader" } = {}): BucketStore {
  const access = { endpoint, accessKeyId, secretAccessKey: "secret" };
  return new BucketStore({ bucket: "papers", prefix, access, folder }, { silenceMs, leastRate });
}

/** The failure's kind and sentence; undefined: it succeeded. */
async function failureOf(work: Promise<unknown>): Promise<string | undefined> {
  const error = await work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (error === undefined) return undefined;
  if (!(error instanceof MoverError)) throw error;
  return `${error.failure}: ${error.message}`;
}

const put = (store = storeOf()) => store.do({ is: "put", id, bytes: content.byteLength });
const get = (store = storeOf()) => store.do({ is: "get", id, bytes: content.byteLength, aside });

test("what is put comes back as it was; what is deleted is gone, and deleting it again is done already", async () => {
  const path = join(folder, id);
  writeFileSync(path, content);
  await put();
  expect(Object.keys(bucket.objects)).toEqual([prefix + id]);
  rmSync(path);
  await get();
  expect(readFileSync(path).equals(content)).toBe(true);
  expect(readdirSync(folder)).toEqual([id]);
  const store = storeOf();
  await store.do({ is: "delete", id });
  await store.do({ is: "delete", id });
  expect(bucket.objects).toEqual({});
  expect(await failureOf(get())).toBe("missing: it is not in the bucket");
  expect(readdirSync(folder)).toEqual([id]);
});

test("a list goes page by page, and names this server's objects alone", async () => {
  const ids = Array.from({ length: 5 }, (_, index) => `${index}`.repeat(32));
  for (const one of ids) bucket.objects[prefix + one] = "x";
  Object.assign(bucket.objects, { [`${prefix}notes.txt`]: "x", [`kv/other/${id}`]: "x", [`${prefix}sub/${id}`]: "x" });
  const found: string[] = [];
  let pages = 0;
  for (let after: string | undefined; ; ) {
    const page = await storeOf().do({ is: "list", after });
    found.push(...(page?.ids ?? []));
    pages += 1;
    after = page?.next;
    if (after === undefined) break;
  }
  expect([found.sort(), pages]).toEqual([ids, 4]);
});

const half = content.subarray(0, 100_000);
const slow = (piece: Uint8Array, restMs: number) =>
  new ReadableStream<Uint8Array>({
    async start(controller) {
      controller.enqueue(piece);
      await Bun.sleep(restMs);
      controller.close();
    },
  });

/** [what is wrong, how the server answers, what a get, a put and a list say] */
const faults: readonly (readonly [string, () => Response | Promise<Response>, string])[] = [
  ["no rights", () => refusal(403, "AccessDenied"), "bucket: the S3 server answered 403"],
  ["wrong region", () => refusal(301, "PermanentRedirect", { "x-amz-bucket-region": "eu-west-1" }), "eu-west-1"],
  ["wrong region, elsewhere", () => Response.redirect("http://127.0.0.1:1/", 307), "the S3 server answered 307"],
  ["no bucket", () => refusal(404, "NoSuchBucket"), "bucket: the S3 server answered 404: there is no such bucket"],
  ["another's 404", () => new Response("<html>", { status: 404 }), "bucket: the S3 server answered 404"],
  ["an error", () => refusal(503, "SlowDown"), "bucket: the S3 server answered 503 (SlowDown)"],
  ["a long error", () => new Response("x".repeat(100_000), { status: 500 }), "bucket: the S3 server answered 500"],
  ["silence", () => Bun.sleep(4 * silenceMs).then(() => new Response("")), "bucket: the S3 server took too long"],
];

describe.each(faults)("%s", (_what, fault, sentence) => {
  test("is said, and leaves no file", async () => {
    writeFileSync(join(folder, id), content);
    bucket.fault = fault;
    const failures = await Promise.all([
      failureOf(put()),
      failureOf(get()),
      failureOf(storeOf().do({ is: "list", after: undefined })),
      failureOf(storeOf().do({ is: "delete", id })),
    ]);
    for (const failure of failures) expect(failure).toContain(sentence);
    expect(readdirSync(folder)).toEqual([id]);
  });
});

/** What comes of a get whose answer is this. */
const answers: readonly (readonly [string, () => Response, string])[] = [
  ["shorter", () => new Response(half), "damaged: the object has 100000 bytes, not 200000"],
  ["longer", () => new Response(Buffer.concat([content, half])), "damaged: the object has 300000 bytes, not 200000"],
  ["cut, its length unsaid", () => new Response(slow(half, 0)), "bucket: 100000 bytes came of 200000"],
  [
    "without an end",
    () => new Response(slow(Buffer.concat([content, half]), 0)),
    "bucket: more than 200000 bytes came",
  ],
  ["silent in its middle", () => new Response(slow(half, 4 * silenceMs)), "bucket: the S3 server took too long"],
];

test.each(answers)("an object that is %s is not taken", async (_what, fault, sentence) => {
  bucket.fault = fault;
  expect(await failureOf(get())).toBe(sentence);
  expect(readdirSync(folder)).toEqual([]);
});

test("an object whose connection breaks is not taken", async () => {
  const head = `HTTP/1.1 200 OK\r\ncontent-length: ${content.byteLength}\r\n\r\n`;
  const server = Bun.listen({
    ...{ hostname: "127.0.0.1", port: 0 },
    socket: { data: (socket) => void socket.end(Buffer.concat([Buffer.from(head), half.subarray(0, 1_000)])) },
  });
  try {
    expect(await failureOf(get(storeOf({ endpoint: `http://127.0.0.1:${server.port}` })))).toStartWith("bucket: ");
    expect(readdirSync(folder)).toEqual([]);
  } finally {
    server.stop(true);
  }
});

test("nobody there, another key: sentences", async () => {
  writeFileSync(join(folder, id), content);
  expect(await failureOf(get(storeOf({ endpoint: "http://127.0.0.1:1" })))).toBe("bucket: ECONNREFUSED");
  expect(await failureOf(put(storeOf({ accessKeyId: "another" })))).toContain("does not know the keys");
});

test("a file that is gone or of another size is not sent; a folder that is gone takes nothing", async () => {
  expect(await failureOf(put())).toBe("file: ENOENT");
  writeFileSync(join(folder, id), half);
  expect(await failureOf(put())).toBe("file: the file has 100000 bytes, not 200000");
  expect(bucket.asked).toEqual([]);
  bucket.objects[prefix + id] = content;
  rmSync(folder, { recursive: true });
  expect(await failureOf(get())).toBe("file: ENOENT");
});
