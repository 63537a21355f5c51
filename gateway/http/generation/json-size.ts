/** How large a parsed JSON value is, told without writing it out. */

export interface SizeBounds {
  /** Of its strings and names, and one for every value and name beside them. */
  readonly chars: number;
  readonly values: number;
}

/** Looks at no more than the bounds allow. */
export function isLargerThan(value: unknown, { chars, values }: SizeBounds): boolean {
  const open = [value];
  let [charsLeft, valuesLeft] = [chars, values];
  while (open.length > 0) {
    const next = open.pop();
    valuesLeft -= 1;
    charsLeft -= typeof next === "string" ? next.length + 2 : 1;
    if (Array.isArray(next)) {
      if (next.length > valuesLeft) return true;
      open.push(...next);
    } else if (typeof next === "object" && next !== null) {
      for (const [name, field] of Object.entries(next)) {
        charsLeft -= name.length + 4;
        open.push(field);
      }
    }
    if (charsLeft < 0 || valuesLeft < open.length) return true;
  }
  return false;
}
