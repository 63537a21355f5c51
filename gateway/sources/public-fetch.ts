/**
 * HTTP GET of addresses that a web page may name: only those of the public internet. A name is resolved once, every
 * address that it has is checked, and the connection goes to the one that was checked, so that a name server that
 * answers otherwise the next time changes nothing. Each redirect begins anew.
 */
import { lookup } from "node:dns/promises";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { request as httpsRequest } from "node:https";
import { isIP } from "node:net";
import ipaddr from "ipaddr.js";
import { FetchError } from "./source-url.ts";

/** The page is elsewhere, and so none of this source. */
export class OutsideError extends FetchError {}

/** Whether the address is of the public internet: no private, loopback, link-local, multicast or reserved one. */
export function isPublicAddress(address: string): boolean {
  if (isIP(address) === 0) return false;
  // `process` makes the IPv4 address of an IPv6 one that stands for it, such as ::ffff:127.0.0.1.
  const own = ipaddr.process(address);
  if (own.range() !== "unicast") return false;
  return own.kind() === "ipv4" || own.match(globalUnicast);
}

/**
 * All that IPv6 has of the public internet (RFC 4291, section 2.4). Outside of it there are forms that stand for an
 * IPv4 address too, as ::127.0.0.1 does.
 */
const globalUnicast = ipaddr.parseCIDR("2000::/3");

/** What may be fetched: the public internet, and these networks in CIDR notation. @throws Error for one that is none */
export function allowing(networks: readonly string[]): (address: string) => boolean {
  const ranges = networks.map((network) => ipaddr.parseCIDR(network));
  const isWithin = (address: string): boolean => {
    const own = ipaddr.process(address);
    return ranges.some((range) => own.kind() === range[0].kind() && own.match(range));
  };
  return (address) => isPublicAddress(address) || (isIP(address) !== 0 && isWithin(address));
}

export interface FetchPolicy {
  /** Default: isPublicAddress. */
  readonly isAllowed?: (address: string) => boolean;
  /** Default: the system's. */
  readonly resolve?: (host: string) => Promise<readonly string[]>;
  /** The whole of one answer, redirects included, in ms. */
  readonly timeoutMs?: number;
  readonly maxBytes?: number;
}

export interface Fetched {
  readonly status: number;
  /** After redirects. */
  readonly url: URL;
  /** Without its parameters. */
  readonly mediaType: string;
  readonly etag: string | undefined;
  readonly lastModified: string | undefined;
  readonly bytes: Uint8Array;
}

const maxRedirects = 5;
const defaultTimeoutMs = 30_000;
/** What the server takes of one file. */
const defaultMaxBytes = 32 * 1024 * 1024;
export const userAgent = "spangate";

export interface FetchRequest {
  /** Sent to the first address alone: what signs a request, or names a page's version, is not for where it leads. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Whether a redirect may be followed; default: anywhere. */
  readonly maySee?: (url: URL) => boolean;
  /** Whether the bytes of a successful answer of this media type are read; default: yes. */
  readonly takes?: (mediaType: string) => boolean;
}

/** @throws FetchError */
export async function fetchPublic(
  start: URL,
  policy: FetchPolicy = {},
  { headers = {}, maySee = () => true, takes = () => true }: FetchRequest = {},
): Promise<Fetched> {
  const signal = AbortSignal.timeout(policy.timeoutMs ?? defaultTimeoutMs);
  let url = start;
  for (let redirects = 0; redirects <= maxRedirects; redirects++) {
    const answer = await getOnce(url, policy, redirects === 0 ? headers : {}, signal);
    const { statusCode: status = 0, headers: given } = answer;
    if (status < 300 || status >= 400 || status === 304 || given.location === undefined) {
      const mediaType = given["content-type"]?.split(";")[0]?.trim().toLowerCase() ?? "";
      const isRead = status === 200 && takes(mediaType);
      const bytes = isRead ? await readAll(answer, policy.maxBytes ?? defaultMaxBytes) : new Uint8Array(0);
      if (!isRead) answer.destroy();
      return { status, url, mediaType, etag: given.etag, lastModified: given["last-modified"], bytes };
    }
    answer.destroy();
    if (!URL.canParse(given.location, url.href)) throw new FetchError("it redirects to what is no URL");
    url = new URL(given.location, url);
    if (!maySee(url)) throw new OutsideError(`it redirects to ${url.href}, which is not part of the source`);
  }
  throw new FetchError(`it redirects more than ${maxRedirects} times`);
}

/** The one address that the connection is made to. @throws FetchError */
async function addressOf(host: string, { isAllowed = isPublicAddress, resolve = resolveAll }: FetchPolicy) {
  const addresses = isIP(host) === 0 ? await resolve(host).catch(() => []) : [host];
  const [first] = addresses;
  if (first === undefined) throw new FetchError(`${host} has no address`);
  // All of them: who mixes public and private addresses means no good.
  if (!addresses.every(isAllowed)) throw new FetchError(`${host} is not of the public internet`);
  return first;
}

const resolveAll = async (host: string): Promise<readonly string[]> =>
  (await lookup(host, { all: true })).map(({ address }) => address);

async function getOnce(
  url: URL,
  policy: FetchPolicy,
  headers: Readonly<Record<string, string>>,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  const isTls = url.protocol === "https:";
  if (!isTls && url.protocol !== "http:") throw new FetchError(`${url.protocol} is neither http nor https`);
  if (url.username !== "" || url.password !== "") throw new FetchError("the URL has a password in it");
  const host = url.hostname.replace(/^\[|\]$/g, "");
  const address = await addressOf(host, policy);
  return await new Promise((resolve, reject) => {
    const refuse = (error: Error): void =>
      reject(new FetchError(signal.aborted ? "it took too long" : `it cannot be reached: ${error.message}`));
    const options = {
      ...{
        host: address,
        port: url.port || (isTls ? 443 : 80),
        path: url.pathname + url.search,
        method: "GET",
        signal,
      },
      // The certificate is checked against the name, and only the connection goes to the address.
      ...(isIP(host) === 0 && { servername: host }),
      headers: { host: url.host, "user-agent": userAgent, "accept-encoding": "identity", ...headers },
      agent: false as const,
    };
    const asked = isTls ? httpsRequest(options, resolve) : httpRequest(options, resolve);
    asked.on("error", refuse);
    asked.end();
  });
}

async function readAll(answer: IncomingMessage, maxBytes: number): Promise<Uint8Array> {
  const pieces: Buffer[] = [];
  let byteCount = 0;
  try {
    for await (const piece of answer as AsyncIterable<Buffer>) {
      byteCount += piece.byteLength;
      if (byteCount > maxBytes) throw new FetchError(`it has more than ${maxBytes} bytes`);
      pieces.push(piece);
    }
  } catch (error) {
    answer.destroy();
    if (error instanceof FetchError) throw error;
    throw new FetchError("it ended early, or took too long");
  }
  const encoding = answer.headers["content-encoding"] ?? "identity";
  if (encoding !== "identity") throw new FetchError(`it is encoded as ${encoding}, which was not asked for`);
  return Buffer.concat(pieces);
}
