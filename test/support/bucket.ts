/** As much of S3 as a reader needs: lists in pages of two, and objects. It takes one key, whose id is `reader`. */
export interface Bucket {
  readonly endpoint: string;
  /** Texts by their keys. */
  readonly objects: Record<string, string>;
  /** Keys of objects that were read. */
  readonly read: string[];
  stop(): Promise<void>;
}

const etagOf = (text: string) => `"${new Bun.CryptoHasher("md5").update(text).digest("hex")}"`;

/** Opens s3://papers. */
export function openBucket(): Bucket {
  const objects: Record<string, string> = {};
  const read: string[] = [];
  const server = Bun.serve({
    ...{ hostname: "127.0.0.1", port: 0 },
    fetch(request) {
      const { pathname, searchParams } = new URL(request.url);
      if (!request.headers.get("authorization")?.includes("Credential=reader/"))
        return new Response("", { status: 403 });
      const key = decodeURIComponent(pathname.replace(/^\/papers\/?/, ""));
      if (key !== "") {
        read.push(key);
        return new Response(objects[key], { headers: { etag: etagOf(objects[key] ?? "") } });
      }
      const keys = Object.keys(objects).filter((name) => name.startsWith(searchParams.get("prefix") ?? ""));
      const from = Number(searchParams.get("continuation-token") ?? 0);
      return new Response(listOf(objects, keys, from));
    },
  });
  return { endpoint: `http://127.0.0.1:${server.port}`, objects, read, stop: () => server.stop(true) };
}

function listOf(objects: Readonly<Record<string, string>>, keys: readonly string[], from: number): string {
  const contents = keys.slice(from, from + 2).map((name) => {
    const text = objects[name] ?? "";
    return `<Contents><Key>${name}</Key><ETag>${etagOf(text)}</ETag><Size>${text.length}</Size></Contents>`;
  });
  const more = from + 2 < keys.length;
  const token = more ? `<NextContinuationToken>${from + 2}</NextContinuationToken>` : "";
  const list = `<Name>papers</Name><IsTruncated>${more}</IsTruncated>${token}${contents.join("")}`;
  const head = '<?xml version="1.0" encoding="UTF-8"?>';
  return `${head}<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">${list}</ListBucketResult>`;
}
