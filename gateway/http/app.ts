/** Makes the Hono app out of its dependencies. The app has no state of its own, so tests call `app.request`. */
import { type Context, Hono } from "hono";
import { cors } from "hono/cors";
import { methodNotAllowed } from "hono/method-not-allowed";
import { getPath } from "hono/utils/url";
import { ApiError, errorBody, toApiError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { Turns } from "../base/turns.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Tracer } from "../telemetry/tracer.ts";
import type { AuditLog } from "../tenant/audit.ts";
import { CallerWatch } from "../tenant/caller-watch.ts";
import type { Authenticator } from "../tenant/principal.ts";
import { anthropicErrorBody, speaksAnthropic } from "./anthropic/errors.ts";
import { addMessagesRoutes, type MessagesDeps } from "./anthropic/messages.ts";
import { auditTrail } from "./middleware/audit.ts";
import type { ConsoleDoor } from "./middleware/console-door.ts";
import {
  authenticate,
  bodyMemory,
  logFailure,
  requestBudgets,
  requireWholeUrl,
  traceRequests,
} from "./middleware/every-request.ts";
import { type RateLimitDeps, rateLimits } from "./middleware/rate-limits.ts";
import { logRequests } from "./middleware/request-log.ts";
import { inSteps, type Step } from "./middleware/steps.ts";
import { addChatRoutes, type ChatDeps } from "./openai/chat.ts";
import { addTextCompletionRoutes, type TextCompletionDeps } from "./openai/text-completions.ts";
import { addTokenizeRoutes, type TokenizeDeps } from "./openai/tokenize.ts";
import { addResponsesRoutes, type ResponsesDeps } from "./responses/responses.ts";
import type { BodyMemory } from "./transport/body-memory.ts";
import type { AppEnv } from "./transport/context.ts";
import { declaredRoutes, RememberingRouter } from "./transport/route.ts";

export interface AppDeps {
  readonly authenticator: Authenticator;
  /** Where the console's cookie comes in; undefined: there is no console. */
  readonly door?: ConsoleDoor;
  /** Each adds the routes of one resource. */
  readonly routes: readonly ((app: Hono<AppEnv>) => void)[];
  /** Turns errors of other layers into errors with a code; gives undefined for any other. */
  readonly translateError?: (thrown: unknown) => ApiError | undefined;
  /** undefined: callers have no limits of their own. */
  readonly rateLimits?: RateLimitDeps;
  /** Memory for the bodies of all requests together; absent: of the usual size. */
  readonly bodyMemory?: BodyMemory;
  /** undefined: changes are not written down. */
  readonly audit?: AuditLog;
  readonly settings?: {
    /** Unknown fields of bodies are errors, whatever a request's header `x-spangate-strict` says. */
    readonly strict: boolean;
    /** Origins whose pages may call this server. */
    readonly corsOrigins: readonly string[];
  };
  /** undefined: nothing is traced. */
  readonly tracer?: Tracer | undefined;
  readonly metrics: Metrics;
  readonly log: Log;
}

/**
 * Of a request whose Host header is no host, Bun gives the path alone, in which Hono could find a path without a slash:
 * no middleware matches that. Whatever it asks for, `requireWholeUrl` refuses it.
 */
const pathOf = (request: Request): string => (request.url.startsWith("/") ? "/" : getPath(request));

/** @throws Error when a route declares no scope */
export function createApp(deps: AppDeps): Hono<AppEnv> {
  const app = new Hono<AppEnv>({ getPath: pathOf, router: new RememberingRouter() });
  const answerTo = (thrown: unknown, context: Context<AppEnv>): Response => {
    const error = deps.translateError?.(thrown) ?? toApiError(thrown);
    if (error.status >= 500) logFailure(deps.log, error, context.get("requestId"));
    return errorAnswer(context, error);
  };
  app.use("*", inSteps(stepsOf(deps), answerTo));
  const { corsOrigins: origins = [] } = deps.settings ?? {};
  if (origins.length > 0) app.use("*", cors({ origin: [...origins], exposeHeaders: exposedHeaders, maxAge: 600 }));
  app.use("*", methodNotAllowed({ app, onMethodNotAllowed: otherMethod }));
  for (const addRoutes of deps.routes) addRoutes(app);
  declaredRoutes(app);
  app.notFound((context) => errorAnswer(context, new ApiError("route_not_found")));
  app.onError(answerTo);
  return app;
}

/** What every request passes before its handler, in this order, and its answer in the other. */
function stepsOf(deps: AppDeps): readonly Step[] {
  const { settings, metrics, log, tracer, authenticator, door, bodyMemory: memory = bodyMemory(), audit } = deps;
  return [
    identify(settings?.strict === true, metrics),
    logRequests(log, knownMethod),
    requireWholeUrl,
    ...(tracer === undefined ? [] : [traceRequests(tracer, knownMethod)]),
    authenticate(authenticator, new CallerWatch(), door),
    requestBudgets(memory, new Turns()),
    ...(deps.rateLimits === undefined ? [] : [rateLimits(deps.rateLimits)]),
    ...(audit === undefined ? [] : [auditTrail(audit, log)]),
  ];
}

/** Gives the request its id, and counts its answer. @param isStrict unknown fields of all bodies are errors */
function identify(isStrict: boolean, metrics: Metrics): Step {
  return (context) => {
    const requestId = context.env?.batch?.requestId ?? `req_${crypto.randomUUID().replaceAll("-", "")}`;
    context.set("requestId", requestId);
    context.set("strict", isStrict || context.req.header("x-spangate-strict") === "true");
    return () => {
      const { req, res } = context;
      // Not by `context.header`, which makes the answer anew.
      res.headers.set("x-request-id", requestId);
      const ignored = context.get("ignored");
      if (ignored !== undefined) res.headers.set("x-spangate-ignored", ignored.join(", "));
      // Anthropic's clients read the request's id from this header.
      if (speaksAnthropic(req.path)) res.headers.set("request-id", requestId);
      // Metrics get the route's pattern, never the path: paths hold ids, so there is no bound to how many there are.
      metrics.count("spangate_http_requests_total", "Answers, by route and status.", {
        method: knownMethod(req.method),
        route: req.routePath,
        status: String(res.status),
      });
    };
  };
}

function errorAnswer(context: Context<AppEnv>, error: ApiError): Response {
  if (error.retryAfterS !== undefined) context.header("retry-after", String(error.retryAfterS));
  const requestId = context.get("requestId");
  context.header("x-request-id", requestId);
  const body = speaksAnthropic(context.req.path) ? anthropicErrorBody(error, requestId) : errorBody(error);
  return context.json(body, error.status);
}

/** A path that is there, asked for with a method that it does not take; OPTIONS asks which it takes. */
function otherMethod(context: Context<AppEnv>, methods: readonly string[]): Response {
  context.header("allow", [...methods, "OPTIONS"].join(", "));
  if (context.req.method === "OPTIONS") {
    // The answer that no route was found has a content type, which an empty answer would inherit.
    context.header("content-type", undefined);
    return context.body(null, 204);
  }
  return errorAnswer(context, new ApiError("method_not_allowed", { message: `Use ${methods.join(" or ")}.` }));
}

/** Headers of answers that pages of other origins may read. */
const exposedHeaders = ["x-request-id", "request-id", "retry-after", "x-spangate-ignored", "openai-poll-after-ms"];

const methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
const knownMethod = (method: string): string => (methods.includes(method) ? method : "other");

/** What the APIs over the one pipeline need: conversations, texts, and their tokens. */
export interface GenerationDeps extends ChatDeps, MessagesDeps, ResponsesDeps, TextCompletionDeps, TokenizeDeps {
  readonly pipeline: ChatDeps["pipeline"] &
    MessagesDeps["pipeline"] &
    ResponsesDeps["pipeline"] &
    TextCompletionDeps["pipeline"] &
    TokenizeDeps["pipeline"];
}

export function addGenerationRoutes(app: Hono<AppEnv>, deps: GenerationDeps): void {
  addChatRoutes(app, deps);
  addMessagesRoutes(app, deps);
  addResponsesRoutes(app, deps);
  addTextCompletionRoutes(app, deps);
  addTokenizeRoutes(app, deps);
}
