/**
 * As much of the Hugging Face hub as we use: listings, files, and another host from which large ones come, with signed
 * addresses. It speaks as the hub's documentation and its Python client have it, and can be made to lie in any way.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface Asked {
  readonly at: "hub" | "storage";
  readonly path: string;
  readonly token: string | undefined;
  readonly range: string | undefined;
}

/** What the hub sends of a file, where that is not what it should be. */
export interface Told {
  /** Bytes after which the connection breaks, from the start of this answer. */
  readonly cutAfter?: number;
  /** Bytes after which nothing more comes. */
  readonly waitAfter?: number;
  /** Bytes in place of the file's. */
  readonly bytes?: Uint8Array;
  readonly knowsNoRanges?: boolean;
  /** Its length is not said. */
  readonly isChunked?: boolean;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface StubHub {
  readonly endpoint: string;
  readonly commit: string;
  /** Contents by path. */
  files: Readonly<Record<string, string | Uint8Array>>;
  readonly asked: Asked[];
  /** The paths of the files that were sent, in order. */
  sent(): string[];
  /** Changes a listing before it is sent. */
  listing: (listing: Listing) => unknown;
  /** How a file is sent; undefined: as it should be. Asked anew at each request. */
  tell: (path: string) => Told | undefined;
  /** Answers in place of the hub; undefined: the hub answers. */
  fault: (asked: Asked) => { status: number; headers?: Record<string, string>; body?: string } | undefined;
  stop(): void;
}

export interface Listing {
  sha: string;
  siblings: { rfilename: string; size: number; blobId: string; lfs?: { sha256: string; size: number } }[];
}

export const modelId = "tiny-org/tiny-model";
const bytesOf = (content: string | Uint8Array): Uint8Array =>
  typeof content === "string" ? new TextEncoder().encode(content) : content;
export const sha256 = (bytes: Uint8Array): string => new Bun.CryptoHasher("sha256").update(bytes).digest("hex");
export const gitHash = (bytes: Uint8Array): string =>
  new Bun.CryptoHasher("sha1").update(`blob ${bytes.length}\0`).update(bytes).digest("hex");
/** As the hub's `.gitattributes` has it. */
const isLarge = (path: string): boolean => path.endsWith(".safetensors") || path.endsWith(".bin");

export async function openHub(files: StubHub["files"]): Promise<StubHub> {
  const asked: Asked[] = [];
  const hub = {
    commit: "0123456789abcdef0123456789abcdef01234567",
    files,
    asked,
    sent: () =>
      asked.flatMap(({ at, path }) =>
        at === "hub" && path.includes("/resolve/") ? [path.split("/resolve/")[1]?.slice(41) ?? ""] : [],
      ),
    listing: (listing: Listing): unknown => listing,
    tell: (): Told | undefined => undefined,
    fault: (): ReturnType<StubHub["fault"]> => undefined,
  } as Omit<StubHub, "endpoint" | "stop">;
  const contentOf = (path: string): Uint8Array | undefined => {
    const content = hub.files[path];
    return content === undefined ? undefined : bytesOf(content);
  };
  const storage = createServer((request, response) => {
    const found = note(request, "storage");
    const url = new URL(found.path, "http://storage");
    const path = decodeURIComponent(url.pathname.slice(1));
    const content = contentOf(path);
    if (content === undefined || url.searchParams.get("signature") !== sha256(bytesOf(path)))
      return refuse(response, 403);
    send(response, content, found.range, hub.tell(path));
  });
  const note = (request: IncomingMessage, at: Asked["at"]): Asked => {
    const { authorization: token, range } = request.headers;
    const one = { at, path: request.url ?? "", token, range };
    asked.push(one);
    return one;
  };
  const server = createServer((request, response) => {
    const one = note(request, "hub");
    const fault = hub.fault(one);
    if (fault !== undefined) return refuse(response, fault.status, fault.headers, fault.body);
    const url = new URL(one.path, "http://hub");
    if (url.pathname.startsWith("/api/models/")) return list(url, response);
    const [, revision, path = ""] = /^\/tiny-org\/tiny-model\/resolve\/([^/]+)\/(.+)$/.exec(url.pathname) ?? [];
    const content = contentOf(decodeURIComponent(path));
    if (revision !== hub.commit || content === undefined)
      return refuse(response, 404, { "x-error-code": "EntryNotFound" });
    if (!isLarge(path)) return send(response, content, one.range, hub.tell(path), `"${gitHash(content)}"`);
    const signature = sha256(bytesOf(path));
    const location = `http://127.0.0.1:${portOf(storage)}/${path}?signature=${signature}`;
    refuse(response, 302, { location, "x-linked-etag": `"${sha256(content)}"`, "x-linked-size": `${content.length}` });
  });
  const list = (url: URL, response: ServerResponse): void => {
    const [, name, revision = ""] = /^\/api\/models\/([^/]+\/[^/]+)\/revision\/(.+)$/.exec(url.pathname) ?? [];
    if (name !== modelId) return refuse(response, 401, { "x-error-code": "RepoNotFound" });
    if (!["main", "v1", "refs/pr/1", hub.commit].includes(decodeURIComponent(revision))) {
      return refuse(response, 404, { "x-error-code": "RevisionNotFound" });
    }
    const siblings = Object.entries(hub.files).map(([rfilename, content]) => {
      const bytes = bytesOf(content);
      const lfs = isLarge(rfilename) ? { lfs: { sha256: sha256(bytes), size: bytes.length } } : {};
      return { rfilename, size: bytes.length, blobId: gitHash(bytes), ...lfs };
    });
    refuse(
      response,
      200,
      { "content-type": "application/json" },
      JSON.stringify(hub.listing({ sha: hub.commit, siblings })),
    );
  };
  for (const each of [server, storage]) await new Promise<void>((resolve) => each.listen(0, "127.0.0.1", resolve));
  const stop = (): void => {
    for (const each of [server, storage]) {
      each.closeAllConnections();
      each.close();
    }
  };
  return Object.assign(hub, { endpoint: `http://127.0.0.1:${portOf(server)}`, stop });
}

const portOf = (server: ReturnType<typeof createServer>): number => (server.address() as AddressInfo).port;

function refuse(response: ServerResponse, status: number, headers: Record<string, string> = {}, body = ""): void {
  response.writeHead(status, headers);
  response.end(body);
}

function send(
  response: ServerResponse,
  whole: Uint8Array,
  range: string | undefined,
  told: Told = {},
  etag = '"none"',
): void {
  const content = told.bytes ?? whole;
  const from = told.knowsNoRanges ? 0 : Number(/^bytes=(\d+)-$/.exec(range ?? "")?.[1] ?? 0);
  const part = content.subarray(from);
  const rangeHeaders = from > 0 ? { "content-range": `bytes ${from}-${content.length - 1}/${content.length}` } : {};
  const headers = {
    ...(!told.isChunked && { "content-length": `${part.length}` }),
    etag,
    ...rangeHeaders,
    ...told.headers,
  };
  response.writeHead(from > 0 ? 206 : 200, headers);
  if (told.waitAfter !== undefined) {
    response.write(part.subarray(0, told.waitAfter));
    return;
  }
  if (told.cutAfter === undefined) {
    response.end(part);
    return;
  }
  response.write(part.subarray(0, told.cutAfter), () => setTimeout(() => response.destroy(), 5));
}
