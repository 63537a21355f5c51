/** The paths of the repository that documents name, and which of them do not exist. */
import { existsSync, readdirSync } from "node:fs";
import { join, posix } from "node:path";
import { filesOf, readText, repositoryRoot } from "./import-graph.ts";

/** A word of a document that begins with one of these folders is a path from the repository's root. */
const topFolders = ["gateway", "worker", "kernels", "db", "migrations", "test", "docs", "deploy", ".ci"];
/** A name with one of these endings is a source file of the repository, also where it stands without its folder. */
const sourceName = /^[\w.@-]+\.(?:ts|cpp|h|cu|cuh|sql|py|sh)$/;
const pathPattern = /^\.{0,2}[\w@-][\w.@/-]*$/;
/** `NNNN-title.md`, `FOLDER`, `OUT.json`: words in capitals stand for what the reader fills in. */
const placeholder = /^(?!README|LICENSE|CHANGELOG|CONTRIBUTING)[A-Z]{2,}(?:[^a-z]|$)/;

const fences = /^( *)(```+|~~~+)[^\n]*\n([\s\S]*?)^\1\2/gm;

/** Every document whose paths are checked. The changelog is left out: it tells of files as they were. */
export const documents: readonly string[] = [
  ...["README.md", "CONTRIBUTING.md"].filter((file) => existsSync(join(repositoryRoot, file))),
  ...[...new Bun.Glob("docs/**/*.md").scanSync(repositoryRoot)].map((file) => file.replaceAll("\\", "/")).sort(),
  "gateway/query/README.md",
  "test/golden/README.md",
];

const basenames = new Set(
  [...filesOf("**/*"), ...readdirSync(join(repositoryRoot, "migrations"))].map((file) => posix.basename(file)),
);

/**
 * Where a path may stand: from the root, or from the document's own folder.
 * @returns undefined for a word that names no path of the repository
 */
function placesOf(word: string, document: string): readonly string[] | undefined {
  const path = word.replace(/#.*$/, "").replace(/:\d+$/, "");
  if (!pathPattern.test(path) || path.split("/").some((part) => placeholder.test(part))) return undefined;
  const folder = posix.dirname(document);
  const isOurs = path.includes("/") && topFolders.includes(path.split("/")[0] ?? "");
  if (isOurs) return [path];
  return sourceName.test(posix.basename(path)) ? [path, posix.join(folder, path)] : undefined;
}

function isThere(places: readonly string[]): boolean {
  return places.some(
    (place) => existsSync(join(repositoryRoot, place)) || (!place.includes("/") && basenames.has(place)),
  );
}

/** Headings of a page as the ends of links name them (GitHub's way: `The way of a salt` is `#the-way-of-a-salt`). */
function anchorsOf(text: string): ReadonlySet<string> {
  const headings = [...text.replace(fences, "").matchAll(/^#{1,6} +(.+)$/gm)].map((match) => match[1] ?? "");
  return new Set(
    headings.map((heading) =>
      heading
        .toLowerCase()
        .replace(/[^\p{L}\p{N} _-]/gu, "")
        .replaceAll(" ", "-"),
    ),
  );
}

/** @param text of the document itself */
function isLinkBroken(target: string, document: string, text: string): boolean {
  if (/^[a-z][a-z+.-]*:/i.test(target)) return false;
  const [path = "", anchor] = decodeURI(target).split("#");
  const file = path === "" ? document : posix.join(posix.dirname(document), path);
  if (path !== "" && !existsSync(join(repositoryRoot, file))) return true;
  if (anchor === undefined || !file.endsWith(".md")) return false;
  return !anchorsOf(path === "" ? text : readText(file)).has(anchor);
}

/**
 * Words in code (`like this`, or in a fenced block) that are paths of the repository, and all targets of links. Words
 * with `<name>`, `*`, `{a,b}` or `…` stand for many paths, or for none, and are passed over.
 * @param document its path, from the root
 * @returns what does not exist, as it is written
 */
export function missingPaths(text: string, document: string): readonly string[] {
  const code = [...text.matchAll(fences)].map((match) => match[3] ?? "");
  const prose = text.replace(fences, "");
  code.push(...[...prose.matchAll(/(`+)([^`]+)\1/g)].map((match) => match[2] ?? ""));
  const words = code.flatMap((piece) => piece.split(/[\s"'()[\],;=]+/)).map((word) => word.replace(/[.:]+$/, ""));
  const missing = words.filter((word) => {
    const places = placesOf(word, document);
    return places !== undefined && !isThere(places);
  });
  const links = [...prose.matchAll(/\]\(<?([^)\s>]+)>?[^)]*\)/g)].map((match) => match[1] ?? "");
  const brokenLinks = links.filter((target) => isLinkBroken(target, document, text));
  return [...new Set([...missing, ...brokenLinks])];
}
