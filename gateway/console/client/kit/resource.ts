/** Data of the API in components: asked for when shown, again when told to, and let go of when not shown any more. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, isAbort, messageOf, type Query } from "./api.ts";

export interface Resource<Data> {
  /** Of the latest answer; stays while it is asked for again. */
  readonly data: Data | undefined;
  readonly error: string | undefined;
  readonly isLoading: boolean;
  reload(): void;
}

export interface ResourceOptions {
  /** Asks again after so many milliseconds, while the page can be seen. */
  readonly everyMs?: number;
}

/**
 * @param load called anew when `inputs` change
 * @param inputs what the answer depends on
 */
export function useResource<Data>(
  load: (signal: AbortSignal) => Promise<Data>,
  inputs: readonly unknown[],
  { everyMs }: ResourceOptions = {},
): Resource<Data> {
  const [state, setState] = useState<{ data?: Data; error?: string; isLoading: boolean }>({ isLoading: true });
  const [round, setRound] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  // The caller says what the answer depends on.
  useEffect(() => {
    const leaving = new AbortController();
    setState((known) => ({ ...known, isLoading: true }));
    const ask = async (): Promise<void> => {
      try {
        const data = await latest.current(leaving.signal);
        if (!leaving.signal.aborted) setState({ data, isLoading: false });
      } catch (error) {
        if (leaving.signal.aborted || isAbort(error)) return;
        setState((known) => ({ ...known, error: messageOf(error), isLoading: false }));
      }
    };
    void ask();
    const timer = everyMs === undefined ? undefined : setInterval(() => !document.hidden && void ask(), everyMs);
    return () => {
      clearInterval(timer);
      leaving.abort();
    };
  }, [round, everyMs, ...inputs]);
  return {
    ...{ data: state.data, error: state.error, isLoading: state.isLoading },
    reload: () => setRound((known) => known + 1),
  };
}

/** What a GET of the path answers. */
export const useGet = <Data>(path: string, query?: Query, options?: ResourceOptions): Resource<Data> =>
  useResource((signal) => get<Data>(path, query, signal), [path, JSON.stringify(query)], options);

interface ListBody<Row> {
  readonly data: readonly Row[];
  readonly has_more: boolean;
  readonly last_id?: string | null;
}

/** A list of the API, page by page, as far as it was scrolled to. */
export interface List<Row> {
  /** While it is asked for again, those of the last time: whoever has the focus in a row keeps it. */
  readonly rows: readonly Row[];
  readonly hasMore: boolean;
  readonly isLoading: boolean;
  readonly error: string | undefined;
  /** Asks for the next page, unless one is on its way. */
  more(): void;
  reload(): void;
}

const pageRows = 100;

/** @param path of a list route, which takes `limit` and `after`; undefined: of nothing yet */
export function useList<Row extends { readonly id: string }>(path: string | undefined, query?: Query): List<Row> {
  const [round, setRound] = useState(0);
  const [, show] = useState(0);
  const asked = JSON.stringify(query);
  // A new round begins with the first page.
  const pages = useMemo(() => new Pages<Row>(path, query, () => show((known) => known + 1)), [path, asked, round]);
  useEffect(() => {
    pages.more();
    return () => pages.leave();
  }, [pages]);
  const name = `${path} ${asked}`;
  const shown = useRef<{ readonly name: string; readonly pages: Pages<Row> }>({ name, pages });
  if (pages.hasAnswered || shown.current.name !== name) shown.current = { name, pages };
  const { rows, hasMore } = shown.current.pages;
  return {
    ...{ rows, hasMore, error: pages.error },
    isLoading: pages.isLoading || (path !== undefined && !pages.hasAnswered),
    more: () => pages.more(),
    reload: () => setRound((known) => known + 1),
  };
}

class Pages<Row extends { readonly id: string }> {
  /** Grows in place: a list may be long. */
  readonly rows: Row[] = [];
  hasMore: boolean;
  isLoading = false;
  /** The first page is there, or it is known why it is not. */
  hasAnswered = false;
  error: string | undefined;
  readonly #path: string | undefined;
  readonly #query: Query | undefined;
  readonly #onChange: () => void;
  readonly #leaving = new AbortController();

  constructor(path: string | undefined, query: Query | undefined, onChange: () => void) {
    this.#path = path;
    this.#query = query;
    this.#onChange = onChange;
    this.hasMore = path !== undefined;
  }

  more(): void {
    if (this.isLoading || !this.hasMore || this.#path === undefined) return;
    this.isLoading = true;
    this.error = undefined;
    void this.#load(this.#path);
  }

  leave(): void {
    this.#leaving.abort();
  }

  async #load(path: string): Promise<void> {
    const { signal } = this.#leaving;
    try {
      const query = { limit: pageRows, ...this.#query, after: this.rows.at(-1)?.id };
      const page = await get<ListBody<Row>>(path, query, signal);
      for (const row of page.data) this.rows.push(row);
      this.hasMore = page.has_more && page.data.length > 0;
    } catch (error) {
      if (isAbort(error)) return;
      this.error = messageOf(error);
      // Scrolling does not ask again by itself for what fails; the note beside it has a button.
      this.hasMore = false;
    }
    this.isLoading = false;
    this.hasAnswered = true;
    if (!signal.aborted) this.#onChange();
  }
}
