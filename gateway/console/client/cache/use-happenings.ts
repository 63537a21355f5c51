/** Follows what becomes of KV while a page is there. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiFailure, isAbort, messageOf, stream } from "../kit/api.ts";
import { type Change, type Happening, happeningsOf } from "./cache.ts";

/** Lines that stay on the page. */
const mostHappenings = 200;
/** Until the stream is opened again after it was cut off. */
const againMs = 2_000;

export interface Happenings {
  /** The latest first. */
  readonly lines: readonly Happening[];
  readonly isLive: boolean;
  /** Rises with each second in which something happened. */
  readonly round: number;
  readonly error: string | undefined;
}

/** Follows what happens as long as the page is there. Where the stream is cut off it is opened again, and nothing is told twice. */
export function useHappenings(): Happenings {
  const [state, setState] = useState<Happenings>({ lines: [], isLive: false, round: 0, error: undefined });
  const seen = useRef(new Set<string>());
  useEffect(() => {
    const leaving = new AbortController();
    const { signal } = leaving;
    const take = (id: string, change: Change): void => {
      if (seen.current.has(id)) return;
      seen.current.add(id);
      const lines = happeningsOf(id, change);
      setState((known) => ({
        ...known,
        lines: [...lines, ...known.lines].slice(0, mostHappenings),
        round: known.round + 1,
      }));
    };
    const follow = async (): Promise<void> => {
      while (!signal.aborted) {
        try {
          for await (const { event, id, data } of stream("GET", "/admin/v1/cache/events", { signal })) {
            if (event === "current") setState((known) => ({ ...known, isLive: true, error: undefined }));
            if (event === "change") take(id ?? "", JSON.parse(data) as Change);
          }
        } catch (error) {
          if (isAbort(error) || signal.aborted) return;
          setState((known) => ({ ...known, error: messageOf(error) }));
          // Who is not allowed to will not be later.
          if (error instanceof ApiFailure && error.status === 403) return;
        }
        setState((known) => ({ ...known, isLive: false }));
        await new Promise((resolve) => setTimeout(resolve, againMs));
      }
    };
    void follow();
    return () => leaving.abort();
  }, []);
  return state;
}

/**
 * Calls `reload` soon after `round` has changed, and not more often than every so many milliseconds.
 * @param reload may be another function each time
 */
export function useThrottled(round: number, reload: () => void, everyMs: number): void {
  const latest = useRef(reload);
  latest.current = reload;
  const lastMs = useRef(0);
  useEffect(() => {
    if (round === 0) return;
    const waitMs = Math.max(0, lastMs.current + everyMs - performance.now());
    const timer = setTimeout(() => {
      lastMs.current = performance.now();
      latest.current();
    }, waitMs);
    return () => clearTimeout(timer);
  }, [round, everyMs]);
}
