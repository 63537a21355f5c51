/**
 * The characters that a pattern distinguishes. Characters that are in exactly the same sets of the pattern form one
 * class, so that work for a class need not be repeated for each of its characters.
 */
import type { Budget } from "./budget.ts";
import type { CodePoints } from "./code-points.ts";

export interface Alphabet {
  /** The characters of each class. */
  readonly classes: readonly CodePoints[];
  /** For each set in order, the classes that it consists of. */
  readonly classesOf: readonly (readonly number[])[];
}

interface Bound {
  readonly at: number;
  readonly set: number;
  readonly isStart: boolean;
}

/** @throws GrammarTooLarge */
export function alphabetOf(sets: readonly CodePoints[], budget: Budget): Alphabet {
  const bounds: Bound[] = [];
  for (const [set, ranges] of sets.entries()) {
    budget.spend("looks", 2 * ranges.length);
    for (const [low, high] of ranges)
      bounds.push({ at: low, set, isStart: true }, { at: high + 1, set, isStart: false });
  }
  bounds.sort((a, b) => a.at - b.at);
  const classes: [number, number][][] = [];
  const classIds = new Map<string, number>();
  const classesOf: number[][] = sets.map(() => []);
  const open = new Set<number>();
  for (const [i, { at, set, isStart }] of bounds.entries()) {
    if (isStart) open.add(set);
    else open.delete(set);
    const end = bounds[i + 1]?.at ?? at;
    if (end === at || open.size === 0) continue;
    budget.spend("looks", open.size);
    const key = [...open].sort((a, b) => a - b).join();
    let id = classIds.get(key);
    if (id === undefined) {
      id = classes.push([]) - 1;
      classIds.set(key, id);
      for (const member of open) classesOf[member]?.push(id);
    }
    classes[id]?.push([at, end - 1]);
  }
  return { classes, classesOf };
}
