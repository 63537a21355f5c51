/**
 * Stand-ins for texts that a template must not see. A stand-in ends in a quote, which gets a backslash each time that the
 * template writes it as JSON: so the rendering tells what stands where, and how it is to be written there.
 */
export interface StandIn {
  readonly index: number;
  /** How often the text is written as JSON, one inside the other. */
  readonly jsonDepth: number;
}

export class StandIns {
  /** No user can know it. */
  readonly #nonce = crypto.randomUUID();
  readonly #pattern = new RegExp(`\uE000${this.#nonce}:(\\d+)(\\\\*)"\uE001`);

  /** What the template sees for the text of this index. */
  of(index: number): string {
    return `\uE000${this.#nonce}:${index}"\uE001`;
  }

  /** A rendering in its order: the template's own text, and the stand-ins. */
  split(rendered: string): readonly (string | StandIn)[] {
    const parts: (string | StandIn)[] = [];
    // `split` gives text, index and backslashes, one after the other, again and again.
    const cut = rendered.split(this.#pattern);
    for (let at = 0; at < cut.length; at += 3) {
      const [text = "", index, backslashes = ""] = cut.slice(at, at + 3);
      if (text !== "") parts.push(text);
      // A text that is written as JSON d times has 2^d - 1 of them before a quote.
      if (index !== undefined) parts.push({ index: Number(index), jsonDepth: Math.log2(backslashes.length + 1) });
    }
    return parts;
  }

  /** Where the text of this index first stands; below 0: nowhere. */
  find(rendered: string, index: number): number {
    // The whole of it: 1 is also how 10 begins.
    return rendered.search(new RegExp(`\uE000${this.#nonce}:${index}\\\\*"\uE001`));
  }
}

/** The text as it stands inside of JSON strings, one in the other. */
export function asJson(text: string, depth: number): string {
  let written = text;
  for (let i = 0; i < depth; i++) written = JSON.stringify(written).slice(1, -1);
  return written;
}
