/** The style guide as a test: which folder may import which, how long a file may be, what must not be written. */
import { expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { join, normalize } from "node:path";
import { documents, missingPaths } from "./support/document-paths.ts";
import {
  filesOf,
  type Import,
  imports,
  lineCount,
  loadedBy,
  readText,
  repositoryRoot,
  typescriptFiles,
} from "./support/import-graph.ts";
import { allowedImports, contains } from "./support/import-table.ts";
import { layoutBars } from "./support/layout-bars.ts";
import { ownedModules } from "./support/owned-modules.ts";

/** The table's row for a file: the longest key that contains it. */
function areaOf(file: string): string {
  const areas = Object.keys(allowedImports).filter((area) => contains(area, file));
  return areas.sort((a, b) => b.length - a.length)[0] ?? "";
}

/** Nobody imports a program, the command line or a test unless the table names it. */
const endPoints = [
  "gateway/main.ts",
  "gateway/extract/main.ts",
  "gateway/tools/compile-thread.ts",
  "gateway/corpus/search/search-thread.ts",
  "gateway/data/log-thread.ts",
  "worker/main.ts",
  "gateway/cli",
  "test",
];

function isAllowed({ from, target }: Import): boolean {
  if (target === undefined) return true;
  const area = areaOf(from);
  const entries = allowedImports[area] ?? [];
  const endPoint = endPoints.find((point) => contains(point, target));
  if (areaOf(target) === area && (endPoint === undefined || contains(endPoint, from))) return true;
  const names = (entry: string): boolean => endPoint === undefined || contains(endPoint, entry);
  return entries.some((entry) => entry === "*" || (contains(entry, target) && names(entry)));
}

test("imports point one way, by the table", () => {
  const wrong = imports.filter((entry) => !isAllowed(entry));
  expect(wrong.map(({ from, target }) => `${from} -> ${target}`)).toEqual([]);
});

test("every import of ours names an existing file with its suffix", () => {
  const missing = imports.filter(({ target }) => target !== undefined && !existsSync(join(repositoryRoot, target)));
  expect(missing.map(({ from, specifier }) => `${from}: ${specifier}`)).toEqual([]);
});

test("the layout keeps its bars", () => {
  const rows = layoutBars.map(
    ([what, found, most]) => `${what.padEnd(48)} ${String(found.length).padStart(5)} ${most}`,
  );
  process.stdout.write(`${"".padEnd(50)} now most\n${rows.join("\n")}\n`);
  const broken = layoutBars.filter(([, found, most]) => found.length > most);
  expect(broken.map(([what, found]) => [what, found.slice(0, 10)])).toEqual([]);
});

test("packages and built-in modules stay in the folders that own them", () => {
  const wrong = imports.filter(({ from, specifier }) => {
    if (from.startsWith("test/")) return false;
    const owned = Object.entries(ownedModules).find(([name]) => specifier === name || specifier.startsWith(`${name}/`));
    return owned !== undefined && !owned[1].some((area) => contains(area, from));
  });
  expect(wrong.map(({ from, specifier }) => `${from}: ${specifier}`)).toEqual([]);
});

const parsers = ["htmlparser2", "robots-parser", "aws4fetch", "csv-parse/sync", "unpdf", "mammoth", "jszip"];

test.each([
  ["gateway/server.ts", [...parsers, "@modelcontextprotocol/server"], "hono"],
  ["gateway/extract/document.ts", parsers, "gateway/extract/protocol.ts"],
  ["worker/backend/cpu/cpu-backend.ts", ["onnxruntime-node"], "worker/backend/cpu/native-dense.ts"],
  ["worker/embedder.ts", ["onnxruntime-node"], "worker/model/token-embedder.ts"],
  ["gateway/cli/main.ts", ["zod", "hono"], "commander"],
])("%s loads what few starts need when it is needed", (entry, late, early) => {
  const loaded = loadedBy(entry);
  expect(late.filter((name) => loaded.has(name))).toEqual([]);
  expect(loaded).toContain(early);
});

test("no file has more than 400 lines", () => {
  const long = filesOf("**/*.{ts,tsx,css,cpp,h,cu,cuh}")
    .map((file) => ({ file, lines: lineCount(file) }))
    .filter(({ lines }) => lines > 400);
  expect(long).toEqual([]);
});

test("module-level state lives in the two main.ts only", () => {
  const stateful = typescriptFiles.filter((file) => {
    const isFree = ["gateway/main.ts", "worker/main.ts"].includes(file) || file.endsWith(".test.ts");
    return !isFree && /^(?:export )?(?:let|var)\s/m.test(readText(file));
  });
  expect(stateful).toEqual([]);
});

const bannedTexts: readonly { readonly what: string; readonly pattern: RegExp }[] = [
  { what: "a path of somebody's machine", pattern: /["'`\s(=](?:\/(?:work|root|home|tmp|Users)\/|[A-Z]:\\)/ },
  { what: "work left undone", pattern: /\b(?:TODO|FIXME|XXX|HACK)\b/ },
  { what: "a silenced check", pattern: /@ts-(?:ignore|nocheck|expect-error)|biome-ignore(?!.*: \S)/ },
  {
    what: "markup that is made of text",
    pattern: /\b(?:inner|outer)HTML\b|\binsertAdjacentHTML\b|\bdocument\.write\b/,
  },
  { what: "a test left out or alone", pattern: /\b(?:test|describe|it)\.(?:only|todo)\(/ },
];

test("nothing is written that must not be", () => {
  const files = [...filesOf("**/*.{ts,tsx,css,cpp,h,cu,cuh}"), ...documents, "CHANGELOG.md", "package.json", ".ci/run"];
  const found = files
    .filter((file) => normalize(file) !== normalize("test/tidy.test.ts"))
    .flatMap((file) => {
      const text = readText(file);
      return bannedTexts.filter(({ pattern }) => pattern.test(text)).map(({ what }) => `${file}: ${what}`);
    });
  expect(found).toEqual([]);
});

test("one file knows where a clone's parts lie; bundles in packages lie elsewhere", () => {
  const found = typescriptFiles.filter((file) => !file.startsWith("test/") && readText(file).includes("import.meta."));
  // Packages are built in a clone only, by sources.
  expect(found.filter((file) => !file.startsWith("packages/"))).toEqual(["places/places.ts"]);
});

/** A hash that anybody can find collisions of names nothing that is a tenant's: gateway/base/secret-names.ts does. */
const weakHash = /\bBun\.hash\b|\b(?:murmur|city|xx|wy|metro|rapid|adler|crc|fnv|djb2|md5|sha1)(?:hash)?\d*\b/i;
const weakHashesAllowed: Readonly<Record<string, string>> = {
  "gateway/corpus/ingest/boundaries.ts": "ranks the places where a text may be cut, and names nothing",
  "gateway/corpus/files/uploads.ts": "a client may ask for its own upload's MD5, as OpenAI's API has it",
  "gateway/http/openai/uploads.ts": "the same",
  "gateway/http/openapi/field-texts.ts": "describes that field",
  "gateway/hub/download.ts": "git's name of a small file, which the hub lists",
};

test("what belongs to tenants is named by no weak hash", () => {
  const shipped = filesOf("**/*.{ts,tsx,css,cpp,h,cu,cuh}").filter((file) => !file.startsWith("test/"));
  const found = shipped.filter((file) => weakHash.test(readText(file)));
  expect(found).toEqual(Object.keys(weakHashesAllowed).sort());
});

test("texts of callers are normalized in Stream-Safe form alone", () => {
  const shipped = typescriptFiles.filter((file) => !file.startsWith("test/"));
  const plain = shipped.filter((file) => /(?<!streamSafe\(\w+\)\s*)\.normalize\("/.test(readText(file)));
  // It is given the query in this form.
  expect(plain).toEqual(["db/fts.ts"]);
});

test("the lockfile names no host", () => {
  expect(readText("bun.lock")).not.toMatch(/https?:\/\//);
});

test("every path of the repository and every heading that a document names exists", () => {
  const missing = documents.flatMap((file) => missingPaths(readText(file), file).map((path) => `${file}: ${path}`));
  expect(missing).toEqual([]);
});

test("paths that do not exist are found in documents, and what is no path is passed over", () => {
  const text = [
    "See `gateway/no-such-file.ts`, `worker/main.ts`, `no-such-name.cpp` and `scheduler.ts`.",
    "Run `bun test test/no-such-folder`, [this](../LICENSE) or [that](no-such-page.md#part), never <https://example.com/a.md>.",
    "## Of `this` and that",
    "[Here](#of-this-and-that), [there](architecture.md#the-words), [nowhere](#no-such-part), [lost](architecture.md#no-such-part).",
    "```sh",
    "sh test/gpu/no-such-script.sh bundle > OUT.json # then test/bench/main.ts",
    "```",
    "Not paths: `POST /v1/files`, `application/json`, `test/bench/<name>.ts`, `docs/adr/NNNN-title.md`, `test/golden/*/`.",
  ];
  expect(missingPaths(text.join("\n"), "docs/page.md")).toEqual([
    "test/gpu/no-such-script.sh",
    "gateway/no-such-file.ts",
    "no-such-name.cpp",
    "test/no-such-folder",
    "no-such-page.md#part",
    "#no-such-part",
    "architecture.md#no-such-part",
  ]);
});
