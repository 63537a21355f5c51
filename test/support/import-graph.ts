/** The imports of the repository's TypeScript files, and what is circular in them. Types count like everything else. */
import { readFileSync } from "node:fs";
import { join, posix } from "node:path";

export const repositoryRoot = join(import.meta.dir, "..", "..");
const sourceFolders = ["places", "packages", "gateway", "worker", "kernels", "db", "test"];
/** Python, weights and corpora of the demo model: trained and generated, not part of the program. */
const excluded = /^worker\/model\/demo\//;

/** Files of the source folders, relative to the repository, sorted. @param pattern a glob below a source folder */
export function filesOf(pattern: string): string[] {
  const files = sourceFolders.flatMap((folder) => [...new Bun.Glob(`${folder}/${pattern}`).scanSync(repositoryRoot)]);
  return files
    .map((file) => file.replaceAll("\\", "/"))
    .filter((file) => !excluded.test(file))
    .sort();
}

export const readText = (file: string): string => readFileSync(join(repositoryRoot, file), "utf8");

export const lineCount = (file: string): number => readText(file).trimEnd().split("\n").length;

export interface Import {
  readonly from: string;
  readonly specifier: string;
  /** Path of a file of ours; undefined for a package. */
  readonly target: string | undefined;
}

const importPattern =
  /^(?:import|export)\s+(?:type\s)?[^"';]*?from\s+"([^"]+)"|^import\s+"([^"]+)"|\bimport\(\s*"([^"]+)"\s*\)/gm;

function importsOf(file: string): Import[] {
  return [...readText(file).matchAll(importPattern)].map(([, from, bare, dynamic]) => {
    const specifier = from ?? bare ?? dynamic ?? "";
    const target = specifier.startsWith(".") ? posix.normalize(posix.join(posix.dirname(file), specifier)) : undefined;
    return { from: file, specifier, target };
  });
}

export const typescriptFiles: readonly string[] = filesOf("**/*.{ts,tsx}");
export const imports: readonly Import[] = typescriptFiles.flatMap(importsOf);

/** What a file loads at once: packages and files of ours, through whatever it imports. Types are none of it. */
export function loadedBy(entry: string): ReadonlySet<string> {
  const transpiler = new Bun.Transpiler({ loader: "ts" });
  const loaded = new Set([entry]);
  for (const file of loaded) {
    if (!file.endsWith(".ts")) continue;
    for (const { path, kind } of transpiler.scanImports(readText(file).replace(/^#!.*/, ""))) {
      if (kind !== "import-statement") continue;
      loaded.add(path.startsWith(".") ? posix.join(posix.dirname(file), path) : path);
    }
  }
  return loaded;
}

/** Names of nodes to the names of nodes that they lead to. */
type Graph = ReadonlyMap<string, ReadonlySet<string>>;

/** @param nodeOf the node that a file belongs to; undefined: the file is left out */
export function graphOf(nodeOf: (file: string) => string | undefined): Graph {
  const graph = new Map<string, Set<string>>();
  for (const { from, target } of imports) {
    const [start, end] = [nodeOf(from), target === undefined ? undefined : nodeOf(target)];
    if (start === undefined || end === undefined || start === end) continue;
    const ends = graph.get(start) ?? new Set();
    graph.set(start, ends.add(end));
  }
  return graph;
}

/** Groups of nodes that all lead to one another, by Tarjan's algorithm for strongly connected components (1972). */
export function circlesOf(graph: Graph): string[][] {
  const indices = new Map<string, number>();
  const lowest = new Map<string, number>();
  const stack: string[] = [];
  const circles: string[][] = [];
  const visit = (node: string): number => {
    const index = indices.size;
    indices.set(node, index);
    lowest.set(node, index);
    stack.push(node);
    for (const next of graph.get(node) ?? []) {
      const reached = indices.has(next) ? (stack.includes(next) ? (indices.get(next) ?? 0) : index) : visit(next);
      lowest.set(node, Math.min(lowest.get(node) ?? index, reached));
    }
    const low = lowest.get(node) ?? index;
    if (low < index) return low;
    const circle = stack.splice(stack.indexOf(node));
    if (circle.length > 1) circles.push(circle.sort());
    return low;
  };
  for (const node of graph.keys()) if (!indices.has(node)) visit(node);
  return circles;
}
