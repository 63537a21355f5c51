/** Which page is shown: the part of the address behind `#`, which no server sees. */
import { signal } from "@preact/signals";

export interface Route {
  /** The page's name: `usage` of `#/usage/acme?from=2026-01-01`. */
  readonly page: string;
  /** `["acme"]` */
  readonly rest: readonly string[];
  readonly query: URLSearchParams;
}

export function readRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split("?");
  const [page = "", ...rest] = path.split("/").map(decoded);
  return { page, rest, query: new URLSearchParams(query) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    // Typed by hand: taken as it stands.
    return part;
  }
}

export const route = signal<Route>(readRoute(location.hash));

addEventListener("hashchange", () => {
  route.value = readRoute(location.hash);
});

/** A link to a page, for `href`. */
export function linkTo(
  page: string,
  rest: readonly string[] = [],
  query: Readonly<Record<string, string>> = {},
): string {
  const text = new URLSearchParams(query).toString();
  return `#/${[page, ...rest].map(encodeURIComponent).join("/")}${text === "" ? "" : `?${text}`}`;
}

/** Goes to a page. @param replace without a step back to where one was */
export function goTo(link: string, replace = false): void {
  if (replace) {
    history.replaceState(null, "", link);
    route.value = readRoute(link);
  } else location.hash = link;
}
