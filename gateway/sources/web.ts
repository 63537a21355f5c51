/**
 * The pages of a web site, as files: everything below the folder of a URL that links lead to, as robots.txt allows. A URL
 * that ends with .xml or .xml.gz is a sitemap: what it names of its own folder is read, as sitemaps.org has it. Links with a query are passed over, since calendars and filters have no end of them.
 */
import { gunzipSync } from "node:zlib";
import { Parser } from "htmlparser2";
import robotsParser from "robots-parser";
import { type Fetched, type FetchPolicy, fetchPublic, OutsideError, userAgent } from "./public-fetch.ts";
import { FetchError, folderOf } from "./source-url.ts";
import { readXml } from "./xml.ts";

export interface WebBounds extends FetchPolicy {
  /** Sitemaps count too. */
  readonly maxPages: number;
  /** Links from the first page to the last; what a sitemap names counts as the last. */
  readonly maxDepth: number;
  readonly maxTotalBytes: number;
  readonly maxMs: number;
}

export interface WebPage {
  readonly name: string;
  readonly url: string;
  readonly etag: string | undefined;
  readonly lastModified: string | undefined;
  /** undefined: the page is as it is known. */
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
/** What sitemaps.org allows, uncompressed. */
const maxSitemapBytes = 50 * 1024 * 1024;
const sitemapFields: ReadonlySet<string> = new Set(["loc"]);
/** Links of one page that are followed, and pages that wait. */
const maxLinksPerPage = 2_000;
const maxWaitingPerPage = 10;

/** A page as it was read before. */
export interface KnownPage {
  readonly name: string;
  readonly etag: string | undefined;
  readonly lastModified: string | undefined;
  read(): Promise<Uint8Array>;
}

/**
 * Yields pages one after the other, and what stands in the way of others. Only one request is under way at a time. A
 * page that is known is asked for on the condition that it has changed; the links of one that has not are read from
 * what is known.
 * @throws FetchError when the first page cannot be had
 */
export function crawl(
  start: URL,
  bounds: WebBounds,
  knownAt: (url: string) => KnownPage | undefined = () => undefined,
): AsyncGenerator<WebPage | WebProblem> {
  return new Crawl(start, bounds, knownAt).pages();
}

interface Waiting {
  readonly url: URL;
  readonly depth: number;
  readonly isSitemap: boolean;
}

const isSitemap = ({ pathname }: URL): boolean => /\.xml(?:\.gz)?$/i.test(pathname);

class Crawl {
  readonly #start: URL;
  readonly #folder: string;
  readonly #bounds: WebBounds;
  readonly #knownAt: (url: string) => KnownPage | undefined;
  readonly #waiting: Waiting[] = [];
  readonly #seen = new Set<string>();
  #mayFetch: (url: URL) => boolean = () => false;
  /** Pages and sitemaps that were read. */
  #pages = 0;
  #byteCount = 0;
  #isCut = false;

  constructor(start: URL, bounds: WebBounds, knownAt: (url: string) => KnownPage | undefined) {
    this.#start = withoutFragment(start);
    this.#folder = folderOf(start);
    this.#bounds = bounds;
    this.#knownAt = knownAt;
  }

  async *pages(): AsyncGenerator<WebPage | WebProblem> {
    const { maxPages, maxTotalBytes, maxMs } = this.#bounds;
    const endMs = performance.now() + maxMs;
    const start = this.#start;
    const atBound = { url: start.href, reason: "the bound of pages, links, bytes or time is reached", isPassing: true };
    this.#mayFetch = await readRobots(start, this.#bounds);
    if (!this.#mayFetch(start)) throw new FetchError(`robots.txt of ${start.host} does not allow ${start.href}`);
    this.#seen.add(start.href);
    this.#waiting.push({ url: start, depth: 0, isSitemap: isSitemap(start) });
    for (let next = this.#waiting.shift(); next !== undefined; next = this.#waiting.shift()) {
      const isOver = this.#pages >= maxPages || this.#byteCount >= maxTotalBytes || performance.now() > endMs;
      if (isOver) return yield { ...atBound, url: next.url.href };
      if (!this.#mayFetch(next.url)) continue;
      yield* next.isSitemap ? this.#readSitemap(next) : this.#readPage(next);
    }
    if (this.#isCut) yield atBound;
  }

  async *#readPage({ url, depth }: Waiting): AsyncGenerator<WebPage | WebProblem> {
    const known = this.#knownAt(url.href);
    const headers = {
      ...(known?.etag !== undefined && { "if-none-match": known.etag }),
      ...(known?.lastModified !== undefined && { "if-modified-since": known.lastModified }),
    };
    const maySee = (to: URL): boolean => this.#isWithin(to) && this.#mayFetch(to);
    const request = { headers, maySee, takes: isTaken };
    const got = await fetchPublic(url, this.#bounds, request).catch((error: Error) => error);
    const unchanged = got instanceof Error || got.status !== 304 ? undefined : known;
    if (got instanceof Error || !(got.status === 200 || unchanged !== undefined)) {
      const reason = got instanceof Error ? got.message : `the site answered ${got.status}`;
      if (url === this.#start) throw new FetchError(`${url.href}: ${reason}`);
      // A broken link is none of our business.
      if (!isAbsent(got)) yield { url: url.href, reason, isPassing: true };
      return;
    }
    // A redirect may lead to a page that was read already.
    if (got.url.href !== url.href && this.#seen.has(got.url.href)) return;
    this.#seen.add(got.url.href);
    if (unchanged === undefined && !isTaken(got.mediaType)) return;
    this.#pages += 1;
    this.#byteCount += got.bytes.byteLength;
    const name = unchanged?.name ?? nameOf(got.url, got.mediaType);
    const { etag = unchanged?.etag, lastModified = unchanged?.lastModified } = got;
    const page = { name, url: got.url.href, etag, lastModified };
    if (name.length <= maxNameChars) yield { ...page, bytes: unchanged === undefined ? got.bytes : undefined };
    else yield { url: page.url, reason: `its path has more than ${maxNameChars} characters`, isPassing: false };
    const isHtml = unchanged === undefined ? htmlTypes.has(got.mediaType) : /\.x?html?$/i.test(name);
    if (!isHtml || depth >= this.#bounds.maxDepth) return;
    const bytes = unchanged === undefined ? got.bytes : await unchanged.read();
    for (const link of linksOf(got.url, bytes)) this.#add(link, depth + 1, false);
  }

  /** Adds what a sitemap, or an index of sitemaps, names. Links of its pages are not followed: it has all that are meant. */
  async *#readSitemap({ url, depth }: Waiting): AsyncGenerator<WebProblem> {
    const maySee = (to: URL): boolean => this.#isWithin(to) && this.#mayFetch(to);
    const policy = { ...this.#bounds, maxBytes: maxSitemapBytes };
    const read = fetchPublic(url, policy, { maySee }).then((got) => {
      if (got.status !== 200) throw new FetchError(`the site answered ${got.status}`);
      this.#pages += 1;
      this.#byteCount += got.bytes.byteLength;
      return sitemapOf(got.bytes);
    });
    const found = await read.catch((error: Error) => error);
    if (found instanceof Error) {
      if (!(found instanceof FetchError)) throw found;
      if (url === this.#start) throw new FetchError(`${url.href}: ${found.message}`);
      // Also one that is gone: an index that names it is out of date, and its pages may be there.
      return yield { url: url.href, reason: found.message, isPassing: true };
    }
    const { maxDepth } = this.#bounds;
    for (const location of found.pages) this.#add(location, maxDepth, false);
    if (depth < maxDepth) for (const location of found.sitemaps) this.#add(location, depth + 1, true);
  }

  #isWithin(url: URL): boolean {
    return url.href.startsWith(this.#folder) && url.search === "";
  }

  #add(url: URL, depth: number, isSitemap: boolean): void {
    if (this.#seen.has(url.href) || !this.#isWithin(url)) return;
    this.#isCut ||= this.#waiting.length >= this.#bounds.maxPages * maxWaitingPerPage;
    if (this.#isCut) return;
    this.#seen.add(url.href);
    this.#waiting.push({ url, depth, isSitemap });
  }
}

/** @throws FetchError unless the bytes, compressed or not, are a sitemap or an index of sitemaps (sitemaps.org) */
function sitemapOf(bytes: Uint8Array): { readonly pages: readonly URL[]; readonly sitemaps: readonly URL[] } {
  const isCompressed = bytes[0] === 0x1f && bytes[1] === 0x8b;
  const { root, records } = readXml(isCompressed ? unzipped(bytes) : bytes, sitemapFields);
  if (root !== "urlset" && root !== "sitemapindex") throw new FetchError("it is no sitemap");
  const locationsIn = (kind: string): URL[] =>
    records.flatMap(({ name, fields }) => {
      const location = name === kind ? (fields.get("loc") ?? "").trim() : "";
      return URL.canParse(location) ? withoutFragment(new URL(location)) : [];
    });
  return { pages: locationsIn("url"), sitemaps: locationsIn("sitemap") };
}

function unzipped(bytes: Uint8Array): Uint8Array {
  try {
    return gunzipSync(bytes, { maxOutputLength: maxSitemapBytes });
  } catch {
    throw new FetchError(`it cannot be decompressed, or has more than ${maxSitemapBytes} bytes then`);
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

function linksOf(url: URL, bytes: Uint8Array): readonly URL[] {
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
