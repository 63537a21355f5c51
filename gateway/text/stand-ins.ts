/**
 * Makes stand-ins for texts that a template must not see. A stand-in ends in a quote, before which the template puts
 * backslashes each time that it writes the text as JSON. So the rendering shows where each text stands and how it has
 * to be written there.
 */
export interface StandIn {
  readonly index: number;
  /** How many times the text is written as JSON, one inside the other. */
  readonly jsonDepth: number;
}

export class StandIns {
  /** A random part that no user can know. */
  readonly #nonce = crypto.randomUUID();
  readonly #pattern = new RegExp(`\uE000${this.#nonce}:(\\d+)(\\\\*)"\uE001`);

  /** The stand-in that the template sees instead of text number `index`. */
  of(index: number): string {
    return `\uE000${this.#nonce}:${index}"\uE001`;
  }

  /** Cuts a rendering into the template's own text and the stand-ins, in order. */
  split(rendered: string): readonly (string | StandIn)[] {
    const parts: (string | StandIn)[] = [];
    // `split` returns text, index and backslashes in turn.
    const cut = rendered.split(this.#pattern);
    for (let at = 0; at < cut.length; at += 3) {
      const [text = "", index, backslashes = ""] = cut.slice(at, at + 3);
      if (text !== "") parts.push(text);
      // A text that is written as JSON d times has 2^d - 1 backslashes before a quote.
      if (index !== undefined) parts.push({ index: Number(index), jsonDepth: Math.log2(backslashes.length + 1) });
    }
    return parts;
  }

  /** Where text number `index` first stands in a rendering. Below 0: it does not. */
  find(rendered: string, index: number): number {
    // The pattern includes the stand-in's end, since index 10 begins with 1.
    return rendered.search(new RegExp(`\uE000${this.#nonce}:${index}\\\\*"\uE001`));
  }
}

/** The text as it is written inside `depth` nested JSON strings. */
export function asJson(text: string, depth: number): string {
  let written = text;
  for (let i = 0; i < depth; i++) written = JSON.stringify(written).slice(1, -1);
  return written;
}
