/**
 * Which kernels wait for the one before them (kernels/cuda/common.cuh), from their text: one that is launched while
 * another still runs and does not wait is a race, which a test on a device may never lose.
 */
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { type KernelName, kernelFile } from "../../../worker/backend/cuda/device/kernels.ts";

/** Of the tree that a program is run in: bundled for a device (test/gpu), this file lies elsewhere. */
const folder = "kernels/cuda";
const notFunctions = new Set(["if", "for", "while", "switch"]);

/** Text between the brace at `start` and its partner. */
function bodyAt(text: string, start: number): string {
  let depth = 0;
  for (let at = start; at < text.length; at++) {
    if (text[at] === "{") depth += 1;
    if (text[at] === "}") depth -= 1;
    if (depth === 0) return text.slice(start, at + 1);
  }
  throw new Error("a brace is never closed");
}

/**
 * Bodies of functions, methods and constructors, by their names, of which a macro may add the end; functions of one name
 * are joined.
 */
function functionsOf(text: string): Map<string, string> {
  const bodies = new Map<string, string>();
  for (const match of text.matchAll(
    /\b([A-Za-z_]\w*)(?:##\w+)?\s*\((?:[^;{}()]|\([^;{}()]*\))*\)\s*(?:const\s*)?(?::[^{;]*)?\{/g,
  )) {
    const [head, name] = match;
    if (notFunctions.has(name)) continue;
    const body = bodyAt(text, match.index + head.length - 1);
    bodies.set(name, `${bodies.get(name) ?? ""}${body}`);
  }
  return bodies;
}

const withoutComments = (text: string): string => text.replace(/\/\*[\s\S]*?\*\//g, "").replace(/\/\/.*/g, "");

/** @param text of a source file with the headers that it reaches */
export function waitsIn(text: string, kernel: string): boolean {
  const functions = functionsOf(withoutComments(text));
  const body = functions.get(kernel) ?? functions.get(kernel.replace(/[^_]*$/, ""));
  if (body === undefined) throw new Error(`no kernel ${kernel}`);
  const direct = body.indexOf("wait_for_previous(");
  // A thread block that ends without waiting lets the kernel end before the one before it has.
  if (direct >= 0 && /\breturn\b/.test(body.slice(0, direct))) return false;
  const reached = new Set<string>();
  const reach = (text: string): void => {
    for (const [name] of text.matchAll(/\b[A-Za-z_]\w*/g)) {
      const called = reached.has(name) ? undefined : functions.get(name);
      if (called === undefined) continue;
      reached.add(name);
      reach(called);
    }
  };
  reach(body);
  return reached.has("wait_for_previous");
}

const paths = new Map(
  readdirSync(folder, { recursive: true, encoding: "utf8" }).map((path) => [basename(path), join(folder, path)]),
);

/** A file with all that it includes, each once. */
function reachedText(file: string, seen = new Set<string>()): string {
  const path = paths.get(file);
  if (seen.has(file) || path === undefined) return "";
  seen.add(file);
  const text = readFileSync(path, "utf8");
  const included = [...text.matchAll(/#include "([^"]+)"/g)].map(([, name]) => reachedText(name, seen));
  return [...included, text].join("\n");
}

const known = new Map<KernelName, boolean>();

export function waitsForPrevious(name: KernelName): boolean {
  const waits = known.get(name) ?? waitsIn(reachedText(kernelFile(name)), name);
  known.set(name, waits);
  return waits;
}
