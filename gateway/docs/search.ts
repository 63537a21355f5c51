/** Search over the parts of all pages, on the server: a browser needs no script and loads no index for it. */
import MiniSearch from "minisearch";

export interface SearchEntry {
  /** Where the part stands. */
  readonly address: string;
  /** The page's title. */
  readonly page: string;
  /** The part's heading. */
  readonly title: string;
  readonly text: string;
}

export interface Found extends Omit<SearchEntry, "text"> {
  /** Some of the text around the first word that was found. */
  readonly excerpt: string;
}

/** Anybody may search, so a search is bounded: characters of what is asked for, its words, and results. */
export const searchLimits = { chars: 100, words: 8, results: 20 } as const;
const excerptChars = 220;

export class DocsIndex {
  readonly #entries: readonly SearchEntry[];
  readonly #index: MiniSearch<SearchEntry & { readonly id: number }>;

  /** @param rest is awaited between parts, so that other work runs meanwhile */
  static async of(entries: readonly SearchEntry[], rest: () => Promise<void>): Promise<DocsIndex> {
    const made = new DocsIndex(entries);
    for (const [id, entry] of entries.entries()) {
      made.#index.add({ ...entry, id });
      if (id % 4 === 3) await rest();
    }
    return made;
  }

  private constructor(entries: readonly SearchEntry[]) {
    this.#entries = entries;
    this.#index = new MiniSearch({
      fields: ["title", "page", "text"],
      searchOptions: { boost: { title: 3, page: 2 }, prefix: (term) => term.length > 2, combineWith: "AND" },
    });
  }

  /** Parts that have all words of the question; where there is none, parts that have some of them, roughly spelt. */
  find(question: string): readonly Found[] {
    const words = question.slice(0, searchLimits.chars).match(/[\p{L}\p{N}]+/gu) ?? [];
    const asked = words.slice(0, searchLimits.words).join(" ");
    if (asked === "") return [];
    const exact = this.#index.search(asked);
    const found = exact.length > 0 ? exact : this.#index.search(asked, { combineWith: "OR", fuzzy: 0.2 });
    return found.slice(0, searchLimits.results).flatMap(({ id, terms }) => {
      const entry = this.#entries[id];
      if (entry === undefined) return [];
      const { address, page, title, text } = entry;
      return [{ address, page, title, excerpt: excerptOf(text, terms) }];
    });
  }
}

function excerptOf(text: string, terms: readonly string[]): string {
  const lower = text.toLowerCase();
  const places = terms.map((term) => lower.indexOf(term)).filter((place) => place >= 0);
  const first = places.length === 0 ? 0 : Math.min(...places);
  const start = first < excerptChars / 2 ? 0 : text.indexOf(" ", first - excerptChars / 2) + 1;
  const part = text.slice(start, start + excerptChars);
  return `${start > 0 ? "… " : ""}${part.trim()}${start + excerptChars < text.length ? " …" : ""}`;
}
