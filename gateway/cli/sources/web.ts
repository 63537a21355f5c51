/**
 * The pages of a web site, as files: everything below the folder of a URL that links lead to, as robots.txt allows.
 * Links with a query are passed over, since calendars and filters have no end of them.
 */
import { Parser } from "htmlparser2";
import robotsParser from "robots-parser";
import { FetchError, type Fetched, type FetchPolicy, fetchPublic, OutsideError, userAgent } from "./public-fetch.ts";

export interface WebBounds extends FetchPolicy {
  readonly maxPages: number;
  /** Links from the first page to the last. */
  readonly maxDepth: number;
  readonly maxTotalBytes: number;
  readonly maxMs: number;
}

export interface WebPage {
  readonly name: string;
  readonly url: string;
  readonly etag: string | undefined;
  /** undefined: the page is what it was when it had the entity tag that was told. */
  readonly bytes: Uint8Array | undefined;
}

export interface WebProblem {
  readonly url: string;
  readonly reason: string;
  /** The page may be there all the same, and so may pages that only it leads to. */
  readonly isPassing: boolean;
}

/** Media types that are taken, with the end that a name gets unless it has one of these. The first is the default. */
const namesByMediaType: Readonly<Record<string, readonly string[]>> = {
  "text/html": ["html", "htm", "xhtml"],
  "application/xhtml+xml": ["xhtml", "html"],
  "text/markdown": ["md", "markdown"],
  "text/plain": ["txt", "md", "log", "rst", "adoc"],
  "text/csv": ["csv"],
  "application/json": ["json"],
  "application/pdf": ["pdf"],
  "application/epub+zip": ["epub"],
  "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ["docx"],
  "application/vnd.openxmlformats-officedocument.presentationml.presentation": ["pptx"],
  "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ["xlsx"],
};
const isTaken = (mediaType: string): boolean => Object.hasOwn(namesByMediaType, mediaType);
const htmlTypes: ReadonlySet<string> = new Set(["text/html", "application/xhtml+xml"]);
const maxNameChars = 255;
const maxRobotsBytes = 512 * 1024;
/** Links of one page that are followed, and pages that wait. */
const maxLinksPerPage = 2_000;
const maxWaitingPerPage = 10;

/** The folder that a source's pages are below: what stands before the last slash of its path. */
export function folderOf(url: URL): string {
  return new URL(".", url).href;
}

/**
 * Yields pages one after the other, and what stands in the way of others. Only one request is under way at a time.
 * @param etagOf the entity tag of a page that need not be sent again; HTML is always read, for its links
 * @throws FetchError when the first page cannot be had
 */
export async function* crawl(
  start: URL,
  bounds: WebBounds,
  etagOf: (name: string) => string | undefined = () => undefined,
): AsyncGenerator<WebPage | WebProblem> {
  const endMs = performance.now() + bounds.maxMs;
  const folder = folderOf(start);
  const isWithin = (url: URL): boolean => url.href.startsWith(folder) && url.search === "";
  const mayFetch = await readRobots(start, bounds);
  const waiting: { url: URL; depth: number }[] = [{ url: withoutFragment(start), depth: 0 }];
  const seen = new Set([waiting[0]?.url.href]);
  let pages = 0;
  let byteCount = 0;
  let isCut = false;
  for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
    const { url, depth } = next;
    const isOver = pages >= bounds.maxPages || byteCount >= bounds.maxTotalBytes || performance.now() > endMs;
    if (isOver || isCut)
      return yield { url: url.href, reason: "the bound of pages, links, bytes or time is reached", isPassing: true };
    if (!mayFetch(url)) {
      if (depth === 0) throw new FetchError(`robots.txt of ${url.host} does not allow ${url.href}`);
      continue;
    }
    const plainName = nameOf(url, "");
    const known = /\.x?html?$/i.test(plainName) ? undefined : etagOf(plainName);
    const headers: Record<string, string> = known === undefined ? {} : { "if-none-match": known };
    const maySee = (to: URL): boolean => isWithin(to) && mayFetch(to);
    const got = await fetchPublic(url, bounds, { headers, maySee, takes: isTaken }).catch((error: Error) => error);
    if (got instanceof Error || !(got.status === 200 || got.status === 304)) {
      const reason = got instanceof Error ? got.message : `the site answered ${got.status}`;
      if (depth === 0) throw new FetchError(`${url.href}: ${reason}`);
      // A broken link is none of our business.
      if (!isAbsent(got)) yield { url: url.href, reason, isPassing: true };
      continue;
    }
    // A redirect may lead to a page that was read already.
    if (got.url.href !== url.href && seen.has(got.url.href)) continue;
    seen.add(got.url.href);
    if (got.status !== 304 && !isTaken(got.mediaType)) continue;
    pages += 1;
    byteCount += got.bytes.byteLength;
    const isUnchanged = got.status === 304;
    const name = nameOf(got.url, isUnchanged ? "" : got.mediaType);
    if (name.length <= maxNameChars)
      yield { name, url: got.url.href, etag: got.etag, bytes: isUnchanged ? undefined : got.bytes };
    else yield { url: got.url.href, reason: `its path has more than ${maxNameChars} characters`, isPassing: false };
    if (!htmlTypes.has(got.mediaType)) continue;
    for (const link of linksOf(got)) {
      if (seen.has(link.href) || !isWithin(link) || depth >= bounds.maxDepth) continue;
      isCut = waiting.length >= bounds.maxPages * maxWaitingPerPage;
      if (isCut) break;
      seen.add(link.href);
      waiting.push({ url: link, depth: depth + 1 });
    }
  }
}

/** Whether the source has no such page for us: it is gone, forbidden or elsewhere. */
function isAbsent(got: Fetched | Error): boolean {
  if (got instanceof FetchError) return got instanceof OutsideError;
  if (got instanceof Error) throw got;
  return got.status >= 400 && got.status < 500 && got.status !== 408 && got.status !== 429;
}

/** As RFC 9309 has it: without a robots.txt everything is allowed, and nothing while it cannot be read. */
async function readRobots(start: URL, policy: FetchPolicy): Promise<(url: URL) => boolean> {
  const url = new URL("/robots.txt", start);
  const got = await fetchPublic(url, { ...policy, maxBytes: maxRobotsBytes });
  if (got.status >= 500) throw new FetchError(`${url.href} cannot be read: the site answered ${got.status}`);
  const robots = robotsParser(url.href, got.status === 200 ? new TextDecoder().decode(got.bytes) : "");
  return (page) => robots.isAllowed(page.href, userAgent) !== false;
}

/** What the page is called in the store: its path, with an end that says its type. */
function nameOf({ hostname, pathname }: URL, mediaType: string): string {
  const path = pathname.endsWith("/") ? `${pathname}index` : pathname;
  const ends = namesByMediaType[mediaType] ?? [];
  const hasEnd = ends.length === 0 || ends.some((end) => path.toLowerCase().endsWith(`.${end}`));
  return `${hostname}${readable(path)}${hasEnd ? "" : `.${ends[0]}`}`;
}

function readable(path: string): string {
  try {
    const decoded = decodeURIComponent(path);
    return /\p{Cc}/u.test(decoded) || !decoded.isWellFormed() ? path : decoded;
  } catch {
    return path;
  }
}

function withoutFragment(url: URL): URL {
  const plain = new URL(url);
  plain.hash = "";
  return plain;
}

function linksOf({ url, bytes }: Fetched): readonly URL[] {
  const links: URL[] = [];
  let base = url;
  const parser = new Parser({
    onopentag(tag, { href = "", rel = "" }) {
      if (href === "" || !URL.canParse(href, base.href)) return;
      if (tag === "base") base = new URL(href, base);
      const isLink = tag === "a" && !/\bnofollow\b/i.test(rel);
      if (isLink && links.length < maxLinksPerPage) links.push(withoutFragment(new URL(href, base)));
    },
  });
  parser.end(new TextDecoder().decode(bytes));
  return links;
}
