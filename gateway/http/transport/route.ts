/**
 * The only way to add a route. Default deny: a route names the scopes it takes before it exists, and
 * `declaredRoutes` refuses to start an app that has a handler added some other way.
 */
import type { Context, Handler, Hono } from "hono";
import type { Result, Router } from "hono/router";
import { TrieRouter } from "hono/router/trie-router";
import type { z } from "zod";
import { ApiError } from "../../base/errors.ts";
import type { Principal, Scope } from "../../tenant/principal.ts";
import type { AppEnv } from "./context.ts";
import { type Method, type RouteCount, type RouteName, type RouteScope, routes } from "./routes.ts";

/** What /openapi.json says of a route. Nothing of it changes what the handler does. */
export interface RouteAbout {
  /** One line: what the route does. */
  readonly summary: string;
  /** Parameters of the query string: the schema that the handler reads them with. */
  readonly query?: z.ZodObject;
  /** The request body; the schema that the handler reads it with where it is JSON. */
  readonly body?: z.ZodType;
  /** Media types of the request body: application/json unless given. */
  readonly bodyTypes?: readonly string[];
  /** A JSON answer. */
  readonly answer?: z.ZodType;
  /** Media types of other answers, as streams are. */
  readonly answerTypes?: readonly string[];
  /** A stream of server-sent events: what the data of each is, by the event's name. */
  readonly events?: Readonly<Record<string, EventAbout>>;
  /** Status of success: 200 unless given. */
  readonly status?: number;
  /** The path's last parameter takes the rest of the path, slashes too. */
  readonly takesSlashes?: boolean;
}

export interface EventAbout {
  /** Of its data, which is JSON. */
  readonly data: z.ZodType;
  /** What `id` is for; absent: the event has none. */
  readonly id?: string;
}

export interface RouteDeclaration {
  readonly method: Method;
  readonly path: string;
  readonly scope: RouteScope;
  /** How a call counts against its caller's limits. */
  readonly count: RouteCount;
  /** undefined: a route that is not of the product, as in tests. */
  readonly about?: RouteAbout;
}

const declaration = Symbol("spangate.route");

interface DeclaredHandler extends Handler<AppEnv> {
  [declaration]?: RouteDeclaration;
}

const hasBody: ReadonlySet<Method> = new Set(["POST", "PUT", "PATCH"]);

/** `/v1/files/:file_id` of `GET /v1/files/:file_id`. */
type PathOf<Name extends string> = Name extends `${string} ${infer Path}` ? Path : never;

type RouteHandler<Path extends string> = (context: Context<AppEnv, Path>) => Response | Promise<Response>;

/**
 * Adds a route of the list to the app. The handler runs only for callers with the scope: 401 without a valid key,
 * 403 without the scope, both before the body is read.
 */
export function declare<Name extends RouteName>(
  app: Hono<AppEnv>,
  name: Name,
  about: RouteAbout,
  handler: RouteHandler<PathOf<Name>>,
): void {
  const [scope, count] = routes[name];
  const [method, path] = name.split(" ") as [Method, PathOf<Name>];
  declareRoute(app, { method, path, scope, count, about }, handler);
}

/** Adds a route that is not on the list, as tests do. */
export function declareRoute<Path extends string>(
  app: Hono<AppEnv>,
  route: RouteDeclaration & { readonly path: Path },
  handler: RouteHandler<Path>,
): void {
  const { method, path, scope, count, about } = route;
  const declared: DeclaredHandler = (context) => {
    const principal = context.get("principal");
    if (scope !== "public") requireScope(principal, context.get("refusal"), scope);
    if (principal !== undefined && count !== "free") context.get("held")?.admit(principal, count);
    const run = () => handler(context as Context<AppEnv, Path>);
    // Requests with a body have their turn behind it.
    const turn = hasBody.has(method)
      ? undefined
      : context.get("budget")?.turn(principal === undefined ? path : undefined);
    return turn === undefined ? run() : turn.then(run);
  };
  declared[declaration] = route;
  app.on(method, about?.takesSlashes === true ? path.replace(/:\w+$/, "$&{.+}") : path, declared);
}

/** Finds the handlers of a request. Those of a route without parameters are looked for once. */
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

/** Every declared route, in order; throws when a route has a handler that was not declared. */
export function declaredRoutes(app: Hono<AppEnv>): readonly RouteDeclaration[] {
  const declarations: RouteDeclaration[] = [];
  for (const route of app.routes) {
    // Middleware registers under ALL and only wraps handlers.
    if (route.method === "ALL") continue;
    const found = (route.handler as DeclaredHandler)[declaration];
    if (found === undefined) throw new Error(`route ${route.method} ${route.path} declares no scope`);
    declarations.push(found);
  }
  return declarations;
}

function requireScope(
  principal: Principal | undefined,
  refusal: () => ApiError,
  scope: Exclude<RouteScope, "public">,
): void {
  if (principal === undefined) throw refusal();
  const accepted: readonly Scope[] = typeof scope === "string" ? [scope] : scope;
  if (accepted.some((name) => principal.scopes.has(name))) return;
  throw new ApiError("insufficient_scope", {
    message: `The API key lacks the scope this route takes: ${accepted.join(" or ")}.`,
  });
}
