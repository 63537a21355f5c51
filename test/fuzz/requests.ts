/** Hostile requests: a route's own valid request, and then what is wrong with it. */
import { deflateSync, gzipSync } from "node:zlib";
import type { RouteDeclaration } from "../../gateway/http/transport/route.ts";
import { fc } from "../support/fast-check.ts";
import { bodyOf } from "./bodies.ts";
import { changedAt, jsonText, Members, pathsOf, Raw, type Tree, treeOf } from "./json-text.ts";
import { injections, strangeText, strangeValue } from "./values.ts";
import type { ObjectIds } from "./world.ts";

export interface Part {
  readonly name: string;
  readonly filename: string | undefined;
  readonly content: string;
}

export interface HostileRequest {
  readonly route: RouteDeclaration;
  /** Whose key. */
  readonly key: "caller" | "admin";
  /** How each path parameter is filled, in order: a text, or undefined for the caller's own object. */
  readonly params: readonly (string | undefined)[];
  readonly query: readonly (readonly [name: string, value: string])[];
  readonly body: Tree | readonly Part[] | undefined;
  readonly isForm: boolean;
  readonly contentType: string | undefined;
  readonly encoding: Encoding;
  readonly chunked: boolean;
  readonly bytes: ByteChange;
}

type Encoding = "none" | "gzip" | "deflate" | "not gzip" | "unknown";

interface ByteChange {
  readonly kind: "none" | "bom" | "bad UTF-8" | "cut" | "flip" | "trailing" | "empty" | "UTF-16" | "blank";
  readonly at: number;
}

interface Change {
  readonly kind: "replace" | "remove" | "twice" | "unknown" | "wrap" | "many" | "text";
  readonly at: number;
  readonly value: Tree;
  readonly name: string;
}

const change: fc.Arbitrary<Change> = fc.record({
  kind: fc.constantFrom<Change["kind"]>(
    "replace",
    "replace",
    "replace",
    "text",
    "remove",
    "twice",
    "unknown",
    "wrap",
    "many",
  ),
  at: fc.nat(100_000),
  value: strangeValue,
  name: fc.oneof(fc.constantFrom("__proto__", "constructor", "stream", "tools", "model", ""), strangeText),
});

const byteChange: fc.Arbitrary<ByteChange> = fc.record({
  kind: fc.oneof(
    { weight: 40, arbitrary: fc.constant<ByteChange["kind"]>("none") },
    {
      weight: 6,
      arbitrary: fc.constantFrom<ByteChange["kind"]>(
        ...(["bom", "bad UTF-8", "cut", "flip", "flip", "trailing", "empty", "UTF-16", "blank"] as const),
      ),
    },
  ),
  at: fc.nat(100_000),
});

const encoding = fc.oneof(
  { weight: 40, arbitrary: fc.constant<Encoding>("none") },
  { weight: 2, arbitrary: fc.constantFrom<Encoding>("gzip", "deflate", "not gzip", "unknown") },
);

const strangeTypes = [
  ...["text/plain", "application/json; charset=utf-16", "application/x-www-form-urlencoded", "multipart/form-data"],
  ...["multipart/form-data; boundary=x", 'multipart/form-data; boundary="', "application/JSON", "application/json;"],
  ...[
    "application/vnd.api+json",
    "text/yaml",
    "application/x-yaml",
    "application/x-ndjson",
    "a".repeat(2_000),
    "*/*",
    "",
  ],
];

const param = fc.oneof(
  { weight: 12, arbitrary: fc.constant(undefined) },
  {
    weight: 4,
    arbitrary: fc.oneof(
      fc.constantFrom("file-aaaaaaaaaaaaaaaaaaaaaaaa", "vs_aaaaaaaaaaaaaaaaaaaaaaaa", "{file_id}", "{tenant_id}", "0"),
      fc.constantFrom(...injections),
      strangeText.filter((text) => text.length < 8_000),
    ),
  },
);

/** A valid form, or one with something wrong in it. */
const form = (fileField: string): fc.Arbitrary<readonly Part[]> =>
  fc
    .tuple(
      fc.oneof({ weight: 2, arbitrary: fc.constant("a.md") }, { weight: 3, arbitrary: strangeText }),
      fc.oneof(fc.constant("Anna works for Tom."), strangeText),
      fc.oneof({ weight: 4, arbitrary: fc.constant("assistants") }, { weight: 1, arbitrary: strangeText }),
      fc.array(
        fc.record({ name: strangeText, filename: fc.option(strangeText, { nil: undefined }), content: strangeText }),
        {
          maxLength: 2,
        },
      ),
      fc.boolean(),
    )
    .map(([filename, content, purpose, more, isWhole]) => {
      const file = { name: fileField, filename, content };
      return [
        ...(isWhole ? [file] : []),
        ...(fileField === "file" ? [{ name: "purpose", filename: undefined, content: purpose }] : []),
        ...(isWhole ? [] : more),
      ];
    });

const boundary = "----spangate-fuzz";

/** Requests to any of the routes; most to those that read a body, as most can go wrong there. */
export function requestToAny(routes: readonly RouteDeclaration[]): fc.Arbitrary<HostileRequest> {
  const weightOf = ({ about }: RouteDeclaration): number =>
    about?.body === undefined && about?.bodyTypes === undefined ? 1 : 6;
  return fc.oneof(...routes.map((route) => ({ weight: weightOf(route), arbitrary: requestTo(route) })));
}

function requestTo(route: RouteDeclaration): fc.Arbitrary<HostileRequest> {
  const kind = bodyOf(route);
  const isForm = route.about?.bodyTypes?.[0]?.startsWith("multipart/") === true;
  const body: fc.Arbitrary<HostileRequest["body"]> = isForm
    ? form(route.path.endsWith("/parts") ? "data" : "file")
    : kind === undefined
      ? fc.option(strangeValue, { nil: undefined, freq: 3 })
      : hostileJson(kind.value);
  const usual = isForm ? `multipart/form-data; boundary=${boundary}` : (kind?.contentType ?? "application/json");
  const names = Object.keys(route.about?.query?.shape ?? {});
  const queryName = fc.constantFrom(...names, "limit", "__proto__", "x");
  const paramCount = [...route.path.matchAll(/:\w+/g)].length;
  return fc.record({
    route: fc.constant(route),
    key: fc.constant(keyFor(route)),
    params: fc.tuple(...Array.from({ length: paramCount }, () => param)),
    query: fc.oneof(
      { weight: 3, arbitrary: fc.constant([]) },
      { weight: 2, arbitrary: fc.array(fc.tuple(queryName, queryValue), { maxLength: 3 }) },
    ),
    body: route.method === "GET" ? fc.constant(undefined) : body,
    isForm: fc.constant(isForm),
    contentType: fc.oneof(
      { weight: 30, arbitrary: fc.constant<string | undefined>(usual) },
      { weight: 1, arbitrary: fc.constantFrom<string | undefined>(undefined, ...strangeTypes) },
    ),
    encoding,
    chunked: fc.boolean(),
    bytes: byteChange,
  });
}

const queryValue = fc.oneof(
  fc.constantFrom("1", "0", "-1", "100", "101", "asc", "desc", "true", "{file_id}", "2026-01-01", "1e3", "٣"),
  strangeText.filter((text) => text.length < 5_000),
);

function keyFor({ scope }: RouteDeclaration): "caller" | "admin" {
  return scope === "platform:admin" || (Array.isArray(scope) && scope[0] === "platform:admin") ? "admin" : "caller";
}

/** Values with up to two things wrong. */
export function hostileJson(values: fc.Arbitrary<unknown>): fc.Arbitrary<Tree> {
  return fc
    .tuple(values, fc.array(change, { maxLength: 2 }))
    .map(([value, changes]) => changes.reduce(changed, treeOf(value)));
}

function changed(tree: Tree, { kind, at, value, name }: Change): Tree {
  const paths = pathsOf(tree);
  const path = paths[at % paths.length] ?? [];
  return changedAt(tree, path, (old) => {
    if (kind === "remove") return undefined;
    if (kind === "wrap") return at % 2 === 0 ? [old] : new Members([["a", old]]);
    if (kind === "text") return typeof value === "string" || value instanceof Raw ? value : String(value);
    if (kind === "many") return Array.isArray(old) && old[0] !== undefined ? repeated(old[0] as Tree) : value;
    if (kind === "replace" || !(old instanceof Members)) return value;
    if (kind === "unknown") return new Members([...old.entries, [name, value]]);
    const [first] = old.entries;
    return first === undefined ? old : new Members([...old.entries, [first[0], value]]);
  });
}

/** More than most lists may have, and not more bytes than a body may. */
function repeated(item: Tree): readonly Tree[] {
  const count = Math.min(2_100, Math.floor(6_000_000 / (jsonText(item).length + 1)) + 1);
  return Array.from({ length: count }, () => item);
}

const filled = (text: string, ids: ObjectIds): string =>
  text.replace(/\{(\w+)\}/g, (all, name: string) => ids[name] ?? all);

/** Path and query string, with the caller's ids in them. */
export function targetOf({ route, params, query }: HostileRequest, ids: ObjectIds): string {
  let index = 0;
  const path = route.path.replace(/:(\w+)/g, (_, name: string) => {
    const given = params[index++];
    return encodeURIComponent((given === undefined ? (ids[name] ?? "unknown") : filled(given, ids)).toWellFormed());
  });
  const pairs = query.map(([name, value]) => {
    const text = filled(value, ids).toWellFormed();
    return `${encodeURIComponent(name)}=${encodeURIComponent(text)}`;
  });
  return pairs.length === 0 ? path : `${path}?${pairs.join("&")}`;
}

/** The body as it goes out; undefined for none. */
export function bytesOf(request: HostileRequest, ids: ObjectIds): Uint8Array | undefined {
  const { body, isForm, encoding: coded, bytes } = request;
  if (body === undefined) return undefined;
  const text = isForm ? formText(body as readonly Part[]) : jsonText(body as Tree);
  const plain = changedBytes(Buffer.from(filled(text, ids)), bytes);
  if (coded === "gzip") return gzipSync(plain);
  return coded === "deflate" ? deflateSync(plain) : plain;
}

export function encodingHeader(coded: Encoding): string | undefined {
  if (coded === "none") return undefined;
  return coded === "not gzip" ? "gzip" : coded === "unknown" ? "zstd, br, x" : coded;
}

function formText(parts: readonly Part[]): string {
  const written = parts.map(({ name, filename, content }) => {
    const file = filename === undefined ? "" : `; filename="${filename}"`;
    return `--${boundary}\r\ncontent-disposition: form-data; name="${name}"${file}\r\n\r\n${content}\r\n`;
  });
  return `${written.join("")}--${boundary}--\r\n`;
}

function changedBytes(bytes: Buffer, { kind, at }: ByteChange): Buffer {
  const place = bytes.length === 0 ? 0 : at % bytes.length;
  const [head, tail] = [bytes.subarray(0, place), bytes.subarray(place)];
  switch (kind) {
    case "none":
      return bytes;
    case "bom":
      return Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), bytes]);
    case "bad UTF-8":
      return Buffer.concat([head, Buffer.from([0xc3, 0x28, 0xed, 0xa0, 0x80]), tail]);
    case "cut":
      return head;
    case "flip":
      return Buffer.concat([head, Buffer.from([(tail[0] ?? 0) ^ (1 << (at % 8))]), tail.subarray(1)]);
    case "trailing":
      return Buffer.concat([bytes, Buffer.from("}]\u0000x")]);
    case "empty":
      return Buffer.alloc(0);
    case "UTF-16":
      return Buffer.from(`\ufeff${bytes.toString()}`, "utf16le");
    case "blank":
      return Buffer.concat([Buffer.alloc(3_000, " "), bytes, Buffer.alloc(3_000, "\n")]);
  }
}
