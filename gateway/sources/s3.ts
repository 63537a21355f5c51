/** The objects below a prefix of an S3 bucket, over the same guarded fetch as web pages. */
import { AwsV4Signer } from "aws4fetch";
import { type Fetched, type FetchPolicy, fetchPublic } from "./public-fetch.ts";
import { FetchError, type S3Source } from "./source-url.ts";
import { readXml } from "./xml.ts";

export interface S3Object {
  readonly key: string;
  readonly etag: string | undefined;
  readonly bytes: number;
}

export interface S3Access {
  /** Of a server other than Amazon's. */
  readonly endpoint?: string | undefined;
  readonly region?: string | undefined;
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
  readonly sessionToken?: string | undefined;
}

const objectsPerPage = 1_000;
const defaultRegion = "us-east-1";
const objectMs = 120_000;
const listFields: ReadonlySet<string> = new Set(["Key", "ETag", "Size", "IsTruncated", "NextContinuationToken"]);

/** Signs requests for one bucket. Its name stands in the path, as every server takes it. */
export class S3Bucket {
  /** The bucket's address. */
  readonly base: string;
  readonly #access: S3Access;

  constructor({ bucket }: Pick<S3Source, "bucket">, access: S3Access) {
    const { endpoint, region = defaultRegion } = access;
    this.#access = access;
    this.base = `${(endpoint ?? `https://s3.${region}.amazonaws.com`).replace(/\/+$/, "")}/${bucket}`;
  }

  /**
   * @param path behind the bucket's address, as it stands in a URL
   * @throws FetchError when that is no URL
   */
  async sign(method: string, path: string, headers: Readonly<Record<string, string>> = {}) {
    const { accessKeyId, secretAccessKey, sessionToken, region = defaultRegion } = this.#access;
    const credentials = { accessKeyId, secretAccessKey, ...(sessionToken !== undefined && { sessionToken }) };
    const url = this.base + path;
    if (!URL.canParse(url)) throw new FetchError(`${url} is no URL`);
    const signed = await new AwsV4Signer({ method, url, headers, service: "s3", region, ...credentials }).sign();
    return { url: signed.url, headers: Object.fromEntries([...signed.headers]) };
  }

  /** The path of a page of the list of what begins with `prefix`. @param token of the page before */
  listPath(prefix: string, token: string | undefined): string {
    const query = new URLSearchParams({ "list-type": "2", "max-keys": `${objectsPerPage}`, prefix });
    if (token !== undefined) query.set("continuation-token", token);
    return `?${query}`;
  }

  /** Reads such a page. @throws FetchError when it is none */
  readList(bytes: Uint8Array): { readonly objects: readonly S3Object[]; readonly next: string | undefined } {
    const { root, fields, records } = readXml(bytes, listFields);
    if (root !== "ListBucketResult") throw new FetchError(`${this.base} is no bucket: it answers something else`);
    const contents = records.filter(({ name }) => name === "Contents").map(({ fields: object }) => object);
    const objects = contents.map((object) => ({
      key: object.get("Key") ?? "",
      etag: object.get("ETag"),
      bytes: Number(object.get("Size") ?? 0),
    }));
    return { objects, next: fields.get("IsTruncated") === "true" ? fields.get("NextContinuationToken") : undefined };
  }
}

export class S3Store {
  readonly #bucket: S3Bucket;
  readonly #policy: FetchPolicy;
  readonly #prefix: string;

  constructor(source: S3Source, access: S3Access, policy: FetchPolicy) {
    this.#bucket = new S3Bucket(source, access);
    this.#policy = { timeoutMs: objectMs, ...policy };
    this.#prefix = source.prefix;
  }

  /** @throws FetchError with the server's reason, and when there are more than `most` */
  async list(most: number): Promise<readonly S3Object[]> {
    const found: S3Object[] = [];
    for (let token: string | undefined; ; ) {
      const { bytes } = await this.#get(this.#bucket.listPath(this.#prefix, token));
      const { objects, next } = this.#bucket.readList(bytes);
      // A key that ends with a slash stands for a folder.
      found.push(...objects.filter(({ key }) => key !== "" && !key.endsWith("/")));
      if (found.length > most) throw new FetchError(`there are more than ${most} objects; name a longer prefix`);
      if (next === undefined || next === token) return found;
      token = next;
    }
  }

  /** @throws FetchError */
  async read({ key }: S3Object): Promise<Uint8Array> {
    const steps = key.split("/");
    // In a URL these would lead to another object.
    if (steps.includes(".") || steps.includes("..")) throw new FetchError('its key has a part "." or ".."');
    return (await this.#get(`/${steps.map(encodeURIComponent).join("/")}`)).bytes;
  }

  async #get(path: string): Promise<Fetched> {
    const { url, headers } = await this.#bucket.sign("GET", path);
    const got = await fetchPublic(url, this.#policy, { headers, maySee: () => false });
    if (got.status === 200) return got;
    throw new FetchError(s3Reason(got.status));
  }
}

/** What an answer that is no success means. */
export const s3Reason = (status: number): string => reasons[status] ?? `the S3 server answered ${status}`;

const reasons: Readonly<Record<number, string>> = {
  301: "the S3 server answered 301: the bucket is of another region",
  400: "the S3 server answered 400: it may be of another region",
  403: "the S3 server answered 403: it does not know the keys, or does not let them do this",
  404: "the S3 server answered 404: there is no such bucket or object",
};
