/** JSON as text, with places where anything may stand: what no serializer would write, a client can still send. */

/** Text that stands in the body as it is. */
export class Raw {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** Members in order, and as often as they stand there. */
export class Members {
  readonly entries: readonly (readonly [name: string, value: Tree])[];

  constructor(entries: readonly (readonly [name: string, value: Tree])[]) {
    this.entries = entries;
  }
}

export type Tree = null | boolean | number | string | Raw | Members | readonly Tree[];

export function treeOf(value: unknown): Tree {
  if (value === undefined) return null;
  if (Array.isArray(value)) return value.map(treeOf);
  if (value instanceof Raw || value instanceof Members || typeof value !== "object" || value === null) {
    return value as Tree;
  }
  return new Members(Object.entries(value).map(([name, member]) => [name, treeOf(member)] as const));
}

export function jsonText(tree: Tree): string {
  if (tree instanceof Raw) return tree.text;
  if (Array.isArray(tree)) return `[${tree.map(jsonText).join(",")}]`;
  if (!(tree instanceof Members)) return JSON.stringify(tree);
  return `{${tree.entries.map(([name, value]) => `${JSON.stringify(name)}:${jsonText(value)}`).join(",")}}`;
}

export type Path = readonly (string | number)[];

/** Every place of the tree, the root first. */
export function pathsOf(tree: Tree, base: Path = []): readonly Path[] {
  if (Array.isArray(tree)) return [base, ...tree.flatMap((item, index) => pathsOf(item, [...base, index]))];
  if (!(tree instanceof Members)) return [base];
  return [base, ...tree.entries.flatMap(([name, value]) => pathsOf(value, [...base, name]))];
}

/** @param change undefined: the place goes away */
export function changedAt(tree: Tree, path: Path, change: (old: Tree) => Tree | undefined): Tree {
  const [head, ...rest] = path;
  if (head === undefined) return change(tree) ?? null;
  const inner = (value: Tree): Tree | undefined => (rest.length === 0 ? change(value) : changedAt(value, rest, change));
  if (Array.isArray(tree)) {
    return tree.flatMap((item, index) => {
      const next = index === head ? inner(item) : item;
      return next === undefined ? [] : [next];
    });
  }
  if (!(tree instanceof Members)) return tree;
  const entries = tree.entries.flatMap(([name, value]): (readonly [string, Tree])[] => {
    const next = name === head ? inner(value) : value;
    return next === undefined ? [] : [[name, next]];
  });
  return new Members(entries);
}
