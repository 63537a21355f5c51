/** The style guide as a test: which folder may import which, how long a file may be, what must not be written. */
import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join, normalize, posix } from "node:path";

const root = join(import.meta.dir, "..");
const sourceFolders = ["gateway", "worker", "kernels", "db", "test"];
/** Python, weights and corpora of the demo model: trained and generated, not part of the program. */
const excluded = /^worker\/model\/demo\//;

function filesOf(pattern: string): string[] {
  const files = sourceFolders.flatMap((folder) => [...new Bun.Glob(`${folder}/${pattern}`).scanSync(root)]);
  return files
    .map((file) => file.replaceAll("\\", "/"))
    .filter((file) => !excluded.test(file))
    .sort();
}

const readText = (file: string) => readFileSync(join(root, file), "utf8");
const typescriptFiles = filesOf("**/*.ts");

/**
 * Where a file may import from, besides its own folder. A key is a folder or a file, the longest that fits
 * counts; so does an entry of the list. "*" is everything.
 */
const allowedImports: Readonly<Record<string, readonly string[]>> = {
  "worker/contract": [],
  kernels: [],
  db: [],
  "gateway/query": [],
  "worker/base": [],
  "worker/native": ["worker/contract", "kernels"],
  "worker/model": ["worker/contract"],
  "worker/sample": ["worker/contract", "worker/base"],
  "worker/cache": ["worker/contract"],
  // The plan of a step's attention is made without knowledge of devices, by whoever runs it.
  "worker/attention": ["worker/contract", "worker/base"],
  "worker/relocation": ["worker/contract", "worker/cache", "worker/backend/backend.ts"],
  "worker/engine": [
    "worker/contract",
    "worker/base",
    "worker/cache",
    "worker/sample",
    "worker/relocation",
    "worker/attention/plan-format.ts",
    "worker/backend/backend.ts",
  ],
  "worker/backend": ["worker/contract", "worker/model", "worker/native", "worker/sample", "worker/attention"],
  "worker/config.ts": ["worker/contract"],
  worker: ["worker", "kernels"],
  "gateway/base": [],
  "gateway/config.ts": ["worker/contract", "gateway/base"],
  "gateway/process": ["gateway/base", "gateway/config.ts"],
  "gateway/background": ["db", "gateway/base"],
  "gateway/data": ["db", "gateway/base"],
  "gateway/tenant": ["db", "worker/contract", "gateway/base", "gateway/background"],
  "gateway/extract": ["gateway/process/confine.ts"],
  "gateway/corpus": ["db", "worker/contract", "gateway/base", "gateway/background", "gateway/extract/protocol.ts"],
  "gateway/text": ["worker/contract", "gateway/base"],
  "gateway/lower": ["worker/contract", "gateway/base", "gateway/query", "gateway/text"],
  "gateway/grammar": ["worker/contract"],
  "gateway/threads": ["gateway/base"],
  "gateway/tools": ["worker/contract", "gateway/base", "gateway/grammar", "gateway/text", "gateway/threads"],
  "gateway/dispatch": ["worker/contract", "gateway/base"],
  "gateway/client": ["gateway/query"],
  "gateway/cli": ["db/backup.ts", "gateway/main.ts", "gateway/client", "gateway/query", "kernels"],
  gateway: ["gateway", "db", "worker/contract", "package.json"],
  test: ["*"],
};

/** Packages and built-in modules that belong to one folder. */
const ownedModules: Readonly<Record<string, readonly string[]>> = {
  "bun:ffi": ["worker/native", "gateway/process/confine.ts"],
  "bun:sqlite": ["db"],
  "sqlite-vec": ["db"],
  "onnxruntime-node": ["worker/backend"],
  "drizzle-orm": ["db"],
  "@huggingface/tokenizers": ["gateway/text", "gateway/embedding"],
  "@huggingface/jinja": ["gateway/text"],
  hono: ["gateway"],
  "@fastify/busboy": ["gateway/http/transport"],
  unpdf: ["gateway/extract"],
  mammoth: ["gateway/extract"],
  jszip: ["gateway/extract"],
  htmlparser2: ["gateway/extract"],
};

interface Import {
  readonly from: string;
  readonly specifier: string;
  /** Path of a file of ours; undefined for a package. */
  readonly target: string | undefined;
  readonly isTypeOnly: boolean;
}

const importPattern =
  /^(?:import|export)\s+(type\s)?[^"';]*?from\s+"([^"]+)"|^import\s+"([^"]+)"|\bimport\(\s*"([^"]+)"\s*\)/gm;

function importsOf(file: string): Import[] {
  return [...readText(file).matchAll(importPattern)].map(([, type, from, bare, dynamic]) => {
    const specifier = from ?? bare ?? dynamic ?? "";
    const target = specifier.startsWith(".") ? posix.normalize(posix.join(posix.dirname(file), specifier)) : undefined;
    return { from: file, specifier, target, isTypeOnly: type !== undefined };
  });
}

const imports = typescriptFiles.flatMap(importsOf);
const contains = (area: string, file: string) => file === area || file.startsWith(`${area}/`);

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
  return entries.some((entry) => entry === "*" || (contains(entry, target) && (endPoint ?? entry) === entry));
}

test("imports point one way, by the table", () => {
  const wrong = imports.filter((entry) => !isAllowed(entry));
  expect(wrong.map(({ from, target }) => `${from} -> ${target}`)).toEqual([]);
});

test("every import of ours names an existing file with its suffix", () => {
  const missing = imports.filter(({ target }) => target !== undefined && !existsSync(join(root, target)));
  expect(missing.map(({ from, specifier }) => `${from}: ${specifier}`)).toEqual([]);
});

test("imports have no cycles", () => {
  const edges = Map.groupBy(
    imports.filter(({ isTypeOnly, target }) => !isTypeOnly && target !== undefined),
    ({ from }) => from,
  );
  const state = new Map<string, "open" | "done">();
  const cycles: string[] = [];
  const visit = (file: string, path: readonly string[]): void => {
    if (state.get(file) === "open") cycles.push([...path.slice(path.indexOf(file)), file].join(" -> "));
    if (state.has(file)) return;
    state.set(file, "open");
    for (const { target } of edges.get(file) ?? []) if (target !== undefined) visit(target, [...path, file]);
    state.set(file, "done");
  };
  for (const file of typescriptFiles) visit(file, []);
  expect(cycles).toEqual([]);
});

test("packages and built-in modules stay in the folders that own them", () => {
  const wrong = imports.filter(({ from, specifier }) => {
    if (from.startsWith("test/")) return false;
    const owned = Object.entries(ownedModules).find(([name]) => specifier === name || specifier.startsWith(`${name}/`));
    return owned !== undefined && !owned[1].some((area) => contains(area, from));
  });
  expect(wrong.map(({ from, specifier }) => `${from}: ${specifier}`)).toEqual([]);
});

test("no file has more than 300 lines", () => {
  const long = filesOf("**/*.{ts,cpp,h,cu,cuh}")
    .map((file) => ({ file, lines: readText(file).trimEnd().split("\n").length }))
    .filter(({ lines }) => lines > 300);
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
  { what: "a test left out or alone", pattern: /\b(?:test|describe|it)\.(?:only|todo)\(/ },
];

test("nothing is written that must not be", () => {
  const files = [...filesOf("**/*.{ts,cpp,h,cu,cuh}"), "README.md", "CHANGELOG.md", "package.json", ".ci/run"];
  const found = files
    .filter((file) => normalize(file) !== normalize("test/tidy.test.ts"))
    .flatMap((file) => {
      const text = readText(file);
      return bannedTexts.filter(({ pattern }) => pattern.test(text)).map(({ what }) => `${file}: ${what}`);
    });
  expect(found).toEqual([]);
});

/** A hash that anybody can find collisions of names nothing that is a tenant's: gateway/base/secret-names.ts does. */
const weakHash = /\bBun\.hash\b|\b(?:murmur|city|xx|wy|metro|rapid|adler|crc|fnv|djb2|md5|sha1)(?:hash)?\d*\b/i;
const weakHashesAllowed: Readonly<Record<string, string>> = {
  "gateway/corpus/files/uploads.ts": "a client may ask for its own upload's MD5, as OpenAI's API has it",
  "gateway/http/openai/uploads.ts": "the same",
  "worker/backend/fake.ts": "what the fake backend generates",
};

test("what belongs to tenants is named by no weak hash", () => {
  const shipped = filesOf("**/*.{ts,cpp,h,cu,cuh}").filter((file) => !file.startsWith("test/"));
  const found = shipped.filter((file) => weakHash.test(readText(file)));
  expect(found).toEqual(Object.keys(weakHashesAllowed).sort());
});

test("the lockfile names no host", () => {
  expect(readText("bun.lock")).not.toMatch(/https?:\/\//);
});
