/** What of the layout is counted, and how much of it there may be. */
import { posix } from "node:path";
import { circlesOf, filesOf, graphOf, imports, lineCount, readText } from "./import-graph.ts";
import { allowedImports, contains } from "./import-table.ts";

/** What ships, tests left out. */
const isProduct = (file: string): boolean => !file.startsWith("test/");

/** A file's folder; files of the folders that hold programs stand for themselves. */
function folderOf(file: string, levels = Number.POSITIVE_INFINITY): string {
  const folder = posix.dirname(file);
  return folder === "gateway" || folder === "worker" ? file : folder.split("/").slice(0, levels).join("/");
}

const folderCircles = (area: string, levels?: number): string[][] =>
  circlesOf(graphOf((file) => (contains(area, file) ? folderOf(file, levels) : undefined)));

/** Folders with more files than a folder has: flat tables, a file a noun or a kernel. */
const largeFolders: Readonly<Record<string, string>> = {
  db: "a query file for each noun",
  "gateway/query": "the query language: pure, small files",
  "worker/engine": "see its own bar",
  "kernels/cpu": "headers and sources of one library",
};
const maxFolderFiles = 16;

const productFiles = filesOf("**/*.{ts,tsx,css,cpp,h,cu,cuh}").filter(isProduct);
const filesByFolder = Map.groupBy(productFiles, (file) => posix.dirname(file));
const engineFiles = filesByFolder.get("worker/engine") ?? [];
const folders = [...new Set(productFiles.map((file) => folderOf(file)))];
const hasRow = (folder: string): boolean => folder in allowedImports || /^kernels\//.test(folder);

/** A file this short that one other imports is a part of that one, or a seam that is listed. */
const shortLines = 50;
/** Seams that are meant: short files with one importer, and why each is a file. */
const shortSeams: Readonly<Record<string, string>> = {
  "db/meta.ts": "a query file for each noun",
  "db/storage.ts": "a query file for each noun",
  "gateway/cli/demo-corpora.ts": "what ships with the demo model; tests and benchmarks read it too",
  "gateway/generate/thinking.ts": "a request's thinking, which tests open without a pipeline",
  "gateway/cli/support/query-file.ts": "reads the query languages, which commands do not import",
  "gateway/compose/tenants.ts": "the part of the composition that is about tenants",
  "gateway/process/secret-settings.ts": "one owner for what is secret",
  "gateway/query/rules/table.ts": "the list of all rules",
  "gateway/tenant/corpus-owners.ts": "one owner for who owns a corpus's chains",
  "gateway/tenant/salts.ts": "one owner for the salt secrets",
  "gateway/threads/serve.ts": "the thread's side of the pool, for any kind of task",
  "worker/backend/cpu/quantize.ts": "the format of quantized weights",
  "worker/backend/cuda/alternating-answers.ts": "where the device puts the answers of two steps in flight",
  "worker/backend/cuda/sample-ops.ts": "the launches that draw tokens",
  "worker/backend/onnx-reranker.ts": "the cross-encoder, beside the model for embeddings",
  "worker/cache/sources.ts": "what the runs of a plan are computed from",
  "worker/engine/admission.ts": "which waiting request may run",
  "worker/model/row-cost.ts": "a row's cost by the model's shape",
  "worker/native/cuda/compile/kernel-sources.ts": "the source files as NVRTC takes them",
  "worker/native/cuda/launch-config.ts": "a C structure, byte for byte",
  "worker/open-backend.ts": "the choice of the backend",
};
const importersOf = Map.groupBy(
  imports.filter(({ from }) => isProduct(from)),
  ({ target }) => target,
);
/** Each page of the console, and each part that pages are made of, is a file however short it is. */
const isShortPart = (file: string): boolean =>
  !contains("gateway/console/client", file) &&
  lineCount(file) < shortLines &&
  new Set(importersOf.get(file)?.map(({ from }) => from)).size === 1;

/** What a chat request passes on its way to the kernels and back: the numbered list of docs/architecture.md. */
const [, wayOfChat = ""] = readText("docs/architecture.md").split("\n## The way of a chat request\n");
const stops = wayOfChat.split("\n## ")[0]?.match(/^\d+\. `[\w./-]+`/gm) ?? [];
/** What that list says wrongly of itself: a number that is left out or given twice, and how many there are. */
const wrongStops = [
  ...stops.filter((stop, index) => Number.parseInt(stop, 10) !== index + 1),
  ...(stops.length > 0 && wayOfChat.includes(`${stops.length} stops`) ? [] : ["the number of stops"]),
];

const linesOf = (file: string): string[] => readText(file).trimEnd().split("\n");
const mostProductLines = 113_000;

/** What may not grow: [what is counted, what there is of it, how many there may be]. */
export const layoutBars: readonly (readonly [what: string, found: readonly unknown[], most: number])[] = [
  ["circles of files", circlesOf(graphOf((file) => (isProduct(file) ? file : undefined))), 0],
  ["circles of test files", circlesOf(graphOf((file) => file)), 0],
  ["loops of the gateway's folders", folderCircles("gateway", 2), 0],
  ["loops of the gateway's folders at two levels", folderCircles("gateway"), 0],
  ["loops of the worker's folders at two levels", folderCircles("worker"), 0],
  [
    "imports from a backend into the engine",
    imports.filter(({ from, target = "" }) => contains("worker/backend", from) && contains("worker/engine", target)),
    0,
  ],
  ["folders without a row in the import table", folders.filter((folder) => !hasRow(folder)), 0],
  [
    `folders of more than ${maxFolderFiles} files`,
    [...filesByFolder].filter(([folder, files]) => files.length > maxFolderFiles && !(folder in largeFolders)),
    0,
  ],
  ["stops of a chat request and its token", stops, 42],
  ["what the list of stops says wrongly", wrongStops, 0],
  ["large folders that are listed", Object.keys(largeFolders), 4],
  ["loose files in gateway/", filesByFolder.get("gateway") ?? [], 3],
  ["files in worker/engine", engineFiles, 18],
  [
    `files under ${shortLines} lines with one importer, unlisted`,
    productFiles.filter((file) => isShortPart(file) && !(file in shortSeams)),
    0,
  ],
  ["such files that are listed", Object.keys(shortSeams), 21],
  [
    "casts to TenantId, tests counted",
    filesOf("**/*.ts").flatMap((file) => readText(file).match(/\bas TenantId\b/g) ?? []),
    0,
  ],
  ["lines in worker/engine", engineFiles.flatMap(linesOf), 2_700],
  // Whoever raises this says in the commit why the product needs the lines; whoever cuts lowers it to the next 50.
  ["lines of the product", productFiles.flatMap(linesOf), mostProductLines],
];
