/**
 * Files of the KV folder as objects of a bucket. It sees sealed bytes only. The endpoint is the operator's own choice, so
 * any address is allowed, unlike those that tenants name; redirects are not followed, so that no other server gets a
 * signed request. A failure is not tried again here: whoever asks knows whether it is still wanted.
 */
import { type FileHandle, open, rename, unlink } from "node:fs/promises";
import { join } from "node:path";
import { S3Bucket, s3Reason } from "../sources/s3.ts";
import { type ListedPage, MoverError, type MoverJob, type MoverSettings } from "./protocol.ts";

/** How long the server may be silent, and what it may take for the whole of an object of a size. */
export interface MoverTimes {
  readonly silenceMs: number;
  /** Bytes a millisecond that an upload has to reach; its server says nothing before the end. */
  readonly leastRate: number;
}

const usualTimes: MoverTimes = { silenceMs: 10_000, leastRate: 256 };
const idPattern = /^[0-9a-f]{32}$/;
/** A page of a thousand keys of up to 1,024 characters. */
const maxListBytes = 4 * 1024 * 1024;
const maxErrorBytes = 16 * 1024;

export class BucketStore {
  readonly #settings: MoverSettings;
  readonly #times: MoverTimes;
  readonly #bucket: S3Bucket;

  constructor(settings: MoverSettings, times: MoverTimes = usualTimes) {
    this.#settings = settings;
    this.#times = times;
    this.#bucket = new S3Bucket(settings, settings.access);
  }

  /** @returns the page, when a list was asked for @throws MoverError */
  async do(job: MoverJob): Promise<ListedPage | undefined> {
    try {
      if (job.is === "list") return await this.#list(job.after);
      if (job.is === "put") await this.#put(job.id, job.bytes);
      else if (job.is === "get") await this.#get(job.id, job.bytes, job.aside);
      else await this.#delete(job.id);
      return undefined;
    } catch (error) {
      if (error instanceof MoverError) throw error;
      throw new MoverError("bucket", reasonOf(error));
    }
  }

  async #put(id: string, bytes: number): Promise<void> {
    const path = join(this.#settings.folder, id);
    // The server compares: what is cut or changed on its way is refused.
    const sha256 = await hashOf(path, bytes).catch((error: unknown) => {
      throw error instanceof MoverError ? error : new MoverError("file", reasonOf(error));
    });
    const { silenceMs, leastRate } = this.#times;
    const signal = AbortSignal.timeout(silenceMs + bytes / leastRate);
    const headers = { "x-amz-content-sha256": sha256, "content-type": "application/octet-stream" };
    await drain(await this.#send("PUT", id, signal, headers, Bun.file(path)));
  }

  async #get(id: string, bytes: number, aside: string): Promise<void> {
    const { folder } = this.#settings;
    using watch = new SilenceWatch(this.#times.silenceMs);
    const answer = await this.#send("GET", id, watch.signal);
    const length = answer.headers.get("content-length");
    if (length !== null && Number(length) !== bytes) {
      throw new MoverError("damaged", `the object has ${length} bytes, not ${bytes}`);
    }
    // A mover that was killed may have left one; an object is fetched once at a time.
    await unlink(join(folder, aside)).catch(() => undefined);
    const written = await writing(() => open(join(folder, aside), "wx", 0o600));
    try {
      try {
        let count = 0;
        for await (const piece of answer.body ?? []) {
          watch.heard();
          count += piece.byteLength;
          if (count > bytes) throw new MoverError("bucket", `more than ${bytes} bytes came`);
          await writing(() => writeAll(written, piece));
        }
        if (count !== bytes) throw new MoverError("bucket", `${count} bytes came of ${bytes}`);
        await writing(() => written.datasync());
      } finally {
        await written.close();
      }
      await writing(() => rename(join(folder, aside), join(folder, id)));
    } catch (error) {
      await unlink(join(folder, aside)).catch(() => undefined);
      throw error;
    }
  }

  async #delete(id: string): Promise<void> {
    await drain(await this.#send("DELETE", id, AbortSignal.timeout(this.#times.silenceMs)));
  }

  async #list(after: string | undefined): Promise<ListedPage> {
    const { prefix } = this.#settings;
    const signal = AbortSignal.timeout(this.#times.silenceMs);
    const answer = await this.#request("GET", this.#bucket.listPath(prefix, after), signal);
    const { objects, next } = this.#bucket.readList(await readUpTo(answer, maxListBytes));
    const ids = objects.map(({ key }) => key.slice(prefix.length)).filter((id) => idPattern.test(id));
    return { ids, next: next === after ? undefined : next };
  }

  #send(
    method: string,
    id: string,
    signal: AbortSignal,
    headers?: Readonly<Record<string, string>>,
    body?: Blob,
  ): Promise<Response> {
    const steps = `${this.#settings.prefix}${id}`.split("/").map(encodeURIComponent);
    return this.#request(method, `/${steps.join("/")}`, signal, headers, body);
  }

  /** @throws MoverError unless it is done, or is gone already when it was to be deleted */
  async #request(
    method: string,
    path: string,
    signal: AbortSignal,
    headers?: Readonly<Record<string, string>>,
    body?: Blob,
  ): Promise<Response> {
    const signed = await this.#bucket.sign(method, path, headers);
    const answer = await fetch(signed.url, {
      method,
      // Objects come as they are.
      headers: { ...signed.headers, "accept-encoding": "identity" },
      ...{ redirect: "manual", decompress: false, signal, ...(body && { body }) },
    });
    if (answer.ok) return answer;
    const text = new TextDecoder().decode(await readUpTo(answer, maxErrorBytes).catch(() => new Uint8Array()));
    const code = /<Code>([A-Za-z]{1,64})<\/Code>/.exec(text)?.[1];
    if (method === "DELETE" && code === "NoSuchKey") return new Response();
    // Nothing else says of an object alone that it is not there: a proxy answers 404 too.
    if (method === "GET" && code === "NoSuchKey") throw new MoverError("missing", "it is not in the bucket");
    const region = answer.headers.get("x-amz-bucket-region") ?? /<Region>([a-z0-9-]{1,32})<\/Region>/.exec(text)?.[1];
    const details = [code, region && `its region is ${region}`].filter(Boolean).join(", ");
    throw new MoverError("bucket", s3Reason(answer.status) + (details && ` (${details})`));
  }
}

/** Aborts what it watches when nothing is heard for a while. */
class SilenceWatch implements Disposable {
  readonly #abort = new AbortController();
  readonly #timer: ReturnType<typeof setInterval>;
  #isHeard = true;

  constructor(silenceMs: number) {
    this.#timer = setInterval(() => {
      if (!this.#isHeard) this.#abort.abort(new DOMException("it was silent", "TimeoutError"));
      this.#isHeard = false;
    }, silenceMs / 2);
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  heard(): void {
    this.#isHeard = true;
  }

  /** What has not been read of the answer by now is not wanted. */
  [Symbol.dispose](): void {
    clearInterval(this.#timer);
    this.#abort.abort();
  }
}

async function hashOf(path: string, bytes: number): Promise<string> {
  const hash = new Bun.CryptoHasher("sha256");
  let count = 0;
  for await (const piece of Bun.file(path).stream()) {
    hash.update(piece);
    count += piece.byteLength;
  }
  if (count !== bytes) throw new MoverError("file", `the file has ${count} bytes, not ${bytes}`);
  return hash.digest("hex");
}

/** What is about the folder's file, and not about the bucket. */
async function writing<Result>(work: () => Promise<Result>): Promise<Result> {
  try {
    return await work();
  } catch (error) {
    throw new MoverError("file", reasonOf(error));
  }
}

/** A write may take less than it was given. */
async function writeAll(handle: FileHandle, bytes: Uint8Array): Promise<void> {
  for (let at = 0; at < bytes.byteLength; ) {
    const { bytesWritten } = await handle.write(bytes, at, bytes.byteLength - at);
    if (bytesWritten === 0) throw new Error("ENOSPC");
    at += bytesWritten;
  }
}

/** @throws MoverError when there is more */
async function readUpTo(answer: Response, most: number): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let count = 0;
  for await (const piece of answer.body ?? []) {
    count += piece.byteLength;
    if (count > most) throw new MoverError("bucket", `the S3 server's answer has more than ${most} bytes`);
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}

/** The connection can be used again once the answer is read. */
const drain = async (answer: Response): Promise<void> => void (await readUpTo(answer, maxErrorBytes));

/** A failure in words, without addresses: they are logged beside it. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return "unknown failure";
  if (error.name === "TimeoutError" || error.name === "AbortError") return "the S3 server took too long";
  const { code } = error as { readonly code?: unknown };
  return typeof code === "string" ? code : error.message;
}
