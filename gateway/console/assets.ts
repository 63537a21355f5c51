/** The console's files in memory, each as it is and compressed, and how they are answered. */
import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { extname, join } from "node:path";
import { promisify } from "node:util";
import { gzip } from "node:zlib";

export interface Asset {
  readonly type: string;
  readonly etag: string;
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly gzipped: Uint8Array<ArrayBuffer>;
}

const types: Readonly<Record<string, string>> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
};

/** @returns by file name */
export async function readAssets(folder: string): Promise<ReadonlyMap<string, Asset>> {
  const names = (await readdir(folder)).filter((name) => extname(name) in types);
  return new Map(await Promise.all(names.map(async (name) => [name, await readAsset(folder, name)] as const)));
}

async function readAsset(folder: string, name: string): Promise<Asset> {
  const bytes = new Uint8Array(await readFile(join(folder, name)));
  const etag = `"${createHash("sha256").update(bytes).digest("base64url").slice(0, 22)}"`;
  const gzipped = new Uint8Array(await promisify(gzip)(bytes, { level: 9 }));
  return { type: types[extname(name)] ?? "application/octet-stream", etag, bytes, gzipped };
}

/** The policy of the console's pages: nothing from elsewhere, no code but ours, no markup made of text. */
export const contentSecurityPolicy = [
  "default-src 'none'",
  ...["script-src", "style-src", "img-src", "connect-src"].map((directive) => `${directive} 'self'`),
  ...["base-uri", "form-action", "frame-ancestors"].map((directive) => `${directive} 'none'`),
  "require-trusted-types-for 'script'",
].join("; ");

const pageHeaders = {
  "content-security-policy": contentSecurityPolicy,
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
};

/** @param isNamedByContent its name changes with its content, so it may be kept for ever */
export function assetAnswer(asset: Asset, request: Request, isNamedByContent: boolean): Response {
  const headers = new Headers({
    ...pageHeaders,
    etag: asset.etag,
    vary: "accept-encoding",
    "cache-control": isNamedByContent ? "public, max-age=31536000, immutable" : "no-cache",
  });
  const known =
    request.headers
      .get("if-none-match")
      ?.split(",")
      .map((each) => each.trim().replace(/^W\//, "")) ?? [];
  if (known.includes(asset.etag)) return new Response(null, { status: 304, headers });
  headers.set("content-type", asset.type);
  if (!acceptsGzip(request.headers.get("accept-encoding") ?? "")) return new Response(asset.bytes, { headers });
  headers.set("content-encoding", "gzip");
  return new Response(asset.gzipped, { headers });
}

/** RFC 9110 12.5.3: a coding with the weight 0 is not wanted. */
const acceptsGzip = (accepted: string): boolean =>
  accepted.split(",").some((each) => /^\s*gzip\s*(?:;(?!\s*q=0(?:\.0*)?\s*$).*)?$/i.test(each));
