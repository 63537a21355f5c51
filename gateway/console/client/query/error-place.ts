/** Where in the text of a query an error's path leads, as well as the text alone tells. */

/** `$.g.input.plus[2].max_tokens` as names and indices. */
export function stepsOf(path: string): readonly (string | number)[] {
  const parts = path.replace(/^\$/, "").match(/\.[^.[\]]+|\[\d+\]/g) ?? [];
  return parts.map((part) => (part.startsWith("[") ? Number(part.slice(1, -1)) : part.slice(1)));
}

/**
 * The line of the last name of the path that is found: names are looked for one behind the other, and an index goes
 * past as many entries of the list that begins there. Lists written with brackets are not gone through.
 * @returns from 0; undefined: not even the first name is there
 */
export function lineOfPath(text: string, path: string): number | undefined {
  const lines = text.split("\n");
  let [at, found]: [number, number | undefined] = [0, undefined];
  for (const step of stepsOf(path)) {
    const next = typeof step === "number" ? entryAt(lines, at, step) : nameAt(lines, at, step);
    if (next === undefined) {
      if (typeof step === "number") continue;
      return found;
    }
    [at, found] = [next, next];
  }
  return found;
}

/** The first line from here on that has the name as a key. */
function nameAt(lines: readonly string[], from: number, name: string): number | undefined {
  const key = new RegExp(`(?:^|[\\s{,"'-])${name.replace(/[^\w]/g, "\\$&")}["']?\\s*:`);
  const index = lines.findIndex((line, at) => at >= from && key.test(line));
  return index < 0 ? undefined : index;
}

/** The line of an entry of the list of dashes that begins behind a line. */
function entryAt(lines: readonly string[], from: number, index: number): number | undefined {
  const first = lines.findIndex((line, at) => at > from && /^\s*-\s/.test(line));
  if (first < 0) return undefined;
  const indent = lines[first]?.search(/\S/) ?? 0;
  let left = index;
  for (let at = first; at < lines.length; at += 1) {
    const line = lines[at] ?? "";
    const depth = line.search(/\S/);
    if (depth >= 0 && depth < indent) return undefined;
    if (depth !== indent || !line.trimStart().startsWith("-")) continue;
    if (left === 0) return at;
    left -= 1;
  }
  return undefined;
}
