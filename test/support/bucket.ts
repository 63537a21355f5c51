/**
 * As much of S3 as we use: lists in pages of two, objects to read, write and delete. It takes one key, whose id is
 * `reader`, and refuses bytes that are not what their header says. It can be made to fail in any way.
 */

/** Answers in place of the server; undefined: the server answers. */
type Fault = (request: Request, key: string) => Response | Promise<Response> | undefined;

export interface Bucket {
  readonly endpoint: string;
  /** Contents by their keys. */
  readonly objects: Record<string, string | Uint8Array>;
  /** Keys of objects that were read. */
  readonly read: string[];
  /** Method and key of every request, in order. */
  readonly asked: string[];
  fault: Fault | undefined;
  stop(): Promise<void>;
}

const etagOf = (content: string | Uint8Array) => `"${new Bun.CryptoHasher("md5").update(content).digest("hex")}"`;

/** An answer as S3 refuses. */
export const refusal = (status: number, code: string, headers: Record<string, string> = {}): Response =>
  new Response(`<?xml version="1.0" encoding="UTF-8"?><Error><Code>${code}</Code></Error>`, { status, headers });

/** Opens s3://papers. */
export function openBucket(): Bucket {
  const objects: Bucket["objects"] = {};
  const [read, asked]: [string[], string[]] = [[], []];
  const bucket: Omit<Bucket, "endpoint" | "stop"> = { objects, read, asked, fault: undefined };
  const server = Bun.serve({
    ...{ hostname: "127.0.0.1", port: 0 },
    async fetch(request) {
      const { pathname, searchParams } = new URL(request.url);
      const key = decodeURIComponent(pathname.replace(/^\/papers\/?/, ""));
      asked.push(`${request.method} ${key}`);
      const failed = await bucket.fault?.(request, key);
      if (failed !== undefined) return failed;
      if (!request.headers.get("authorization")?.includes("Credential=reader/")) return refusal(403, "AccessDenied");
      if (!pathname.startsWith("/papers")) return refusal(404, "NoSuchBucket");
      if (key !== "") return answerOf(request, key, objects, read);
      const keys = Object.keys(objects).filter((name) => name.startsWith(searchParams.get("prefix") ?? ""));
      const from = Number(searchParams.get("continuation-token") ?? 0);
      return new Response(listOf(objects, keys, from));
    },
  });
  return Object.assign(bucket, { endpoint: `http://127.0.0.1:${server.port}`, stop: () => server.stop(true) });
}

async function answerOf(request: Request, key: string, objects: Bucket["objects"], read: string[]): Promise<Response> {
  const { method } = request;
  if (method === "DELETE") {
    delete objects[key];
    return new Response(null, { status: 204 });
  }
  if (method === "PUT") {
    const bytes = await request.bytes();
    const sha256 = new Bun.CryptoHasher("sha256").update(bytes).digest("hex");
    if (request.headers.get("x-amz-content-sha256") !== sha256) return refusal(400, "XAmzContentSHA256Mismatch");
    objects[key] = bytes;
    return new Response("", { headers: { etag: etagOf(bytes) } });
  }
  read.push(key);
  const content = objects[key];
  if (content === undefined) return refusal(404, "NoSuchKey");
  return new Response(content, { headers: { etag: etagOf(content) } });
}

function listOf(objects: Bucket["objects"], keys: readonly string[], from: number): string {
  const contents = keys.slice(from, from + 2).map((name) => {
    const content = objects[name] ?? "";
    return `<Contents><Key>${name}</Key><ETag>${etagOf(content)}</ETag><Size>${content.length}</Size></Contents>`;
  });
  const more = from + 2 < keys.length;
  const token = more ? `<NextContinuationToken>${from + 2}</NextContinuationToken>` : "";
  const list = `<Name>papers</Name><IsTruncated>${more}</IsTruncated>${token}${contents.join("")}`;
  const head = '<?xml version="1.0" encoding="UTF-8"?>';
  return `${head}<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">${list}</ListBucketResult>`;
}
