/** The objects below a prefix of an S3 bucket. The keys come from the environment, as S3 programs have them. */
import { FetchError } from "./public-fetch.ts";

export interface S3Object {
  readonly key: string;
  readonly etag: string | undefined;
  readonly bytes: number;
}

export interface S3Source {
  readonly bucket: string;
  readonly prefix: string;
}

const objectsPerPage = 1_000;

/** @throws FetchError unless it is s3://bucket or s3://bucket/prefix */
export function s3SourceOf(text: string): S3Source {
  const [, bucket, prefix = ""] = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/(.*))?$/.exec(text) ?? [];
  if (bucket === undefined) throw new FetchError(`${text} is not s3://bucket/prefix`);
  return { bucket, prefix };
}

export class S3Store {
  readonly #client: Bun.S3Client;
  readonly #prefix: string;

  /** @param endpoint of a server other than Amazon's; undefined: S3_ENDPOINT, else Amazon's */
  constructor({ bucket, prefix }: S3Source, endpoint: string | undefined) {
    this.#client = new Bun.S3Client({ bucket, ...(endpoint !== undefined && { endpoint }) });
    this.#prefix = prefix;
  }

  /** @throws FetchError with the server's reason, and when there are more than `most` */
  async list(most: number): Promise<readonly S3Object[]> {
    const objects: S3Object[] = [];
    for (let continuationToken: string | undefined; ; ) {
      const query = { prefix: this.#prefix, maxKeys: objectsPerPage, ...(continuationToken && { continuationToken }) };
      const page = await this.#client.list(query).catch(refuse);
      for (const { key, eTag, size = 0 } of page.contents ?? []) {
        // A key that ends with a slash stands for a folder.
        if (!key.endsWith("/")) objects.push({ key, etag: eTag, bytes: size });
      }
      if (objects.length > most) throw new FetchError(`there are more than ${most} objects; name a longer prefix`);
      continuationToken = page.isTruncated ? page.nextContinuationToken : undefined;
      if (continuationToken === undefined) return objects;
    }
  }

  async read({ key }: S3Object): Promise<Uint8Array> {
    return await this.#client.file(key).bytes().catch(refuse);
  }
}

function refuse(error: Error & { readonly code?: string }): never {
  throw new FetchError(
    error.code === "ERR_S3_MISSING_CREDENTIALS" ? "set S3_ACCESS_KEY_ID and S3_SECRET_ACCESS_KEY" : error.message,
  );
}
