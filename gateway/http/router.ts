/** Finds the handlers of a request. Those of a path without parameters are looked for once. */
import type { Result, Router } from "hono/router";
import { TrieRouter } from "hono/router/trie-router";

export class RememberingRouter<Handler> implements Router<Handler> {
  readonly name = "RememberingRouter";
  readonly #router = new TrieRouter<Handler>();
  /** Methods and paths of the routes without parameters, and their handlers once they were asked for. */
  readonly #found = new Map<string, Result<Handler> | undefined>();

  add(method: string, path: string, handler: Handler): void {
    this.#router.add(method, path, handler);
    // What was found before may lack this one, which may be for every path.
    for (const name of this.#found.keys()) this.#found.set(name, undefined);
    if (!/[:*]/.test(path)) this.#found.set(`${method} ${path}`, undefined);
  }

  match(method: string, path: string): Result<Handler> {
    const name = `${method} ${path}`;
    const found = this.#found.get(name) ?? this.#router.match(method, path);
    // Only the names of routes are kept: what callers ask for has no bound.
    if (this.#found.has(name)) this.#found.set(name, found);
    return found;
  }
}
