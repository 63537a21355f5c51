/**
 * Speaks HTTP with the hub. The token goes to the hub's own address alone: large files come from other hosts, which a
 * redirect names with a signed address.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { HubError, type HubModel, hubModelText } from "./hub-model.ts";
import type { HubSettings } from "./hub-settings.ts";

/** What may be tried again: the network, or a hub that is busy. */
export class PassingError extends HubError {
  /** What the hub asks to wait, in ms. */
  readonly waitMs: number | undefined;

  constructor(message: string, waitMs?: number) {
    super(message);
    this.waitMs = waitMs;
  }
}

export interface HubPace {
  /** How long an answer may take to begin, and its body to go on, in ms. */
  readonly stallMs: number;
  /** The wait before the first repetition, in ms; it doubles with each. */
  readonly retryMs: number;
}

export const usualPace: HubPace = { stallMs: 30_000, retryMs: 500 };
/** What went wrong, and how long it is until it is tried again, in ms. */
export type OnRetry = (problem: string, waitMs: number) => void;

const maxRedirects = 5;
const maxWaitMs = 60_000;
/** Repetitions with no byte between them. */
const maxRetries = 5;

export class HubClient {
  readonly settings: HubSettings;
  readonly #pace: HubPace;
  readonly #signal: AbortSignal;
  readonly #onRetry: OnRetry | undefined;

  constructor(settings: HubSettings, signal: AbortSignal, pace: HubPace = usualPace, onRetry?: OnRetry) {
    this.settings = settings;
    this.#signal = signal;
    this.#pace = pace;
    this.#onRetry = onRetry;
  }

  /**
   * Gets an address of the hub's, through redirects.
   * @param path from the endpoint on
   * @throws HubError naming the model; PassingError when it may be tried again
   */
  async get(path: string, model: HubModel, headers: Readonly<Record<string, string>> = {}): Promise<HubAnswer> {
    const { endpoint, token } = this.settings;
    let url = new URL(`${endpoint}${path}`);
    const { origin } = url;
    for (let redirects = 0; redirects <= maxRedirects; redirects++) {
      const isHub = url.origin === origin;
      const answer = await this.#once(url, {
        ...headers,
        ...(token !== undefined && isHub && { authorization: `Bearer ${token}` }),
      });
      const location = answer.headers.get("location");
      if (answer.status < 300 || answer.status >= 400 || location === null) {
        if (answer.ok) return answer;
        answer.close();
        throw statusError(answer, model, this.settings);
      }
      answer.close();
      if (!URL.canParse(location, url.href)) throw new HubError(`${url.host} redirects to what is no URL`);
      const next = new URL(location, url);
      const isPlain = next.protocol === "http:" && url.protocol === "http:";
      if (next.protocol !== "https:" && !isPlain) throw new HubError(`${url.host} redirects to ${next.protocol}`);
      url = next;
    }
    throw new HubError(`${new URL(endpoint).host} redirects more than ${maxRedirects} times`);
  }

  /** Runs `attempt` until it succeeds, or fails for good, or has failed too often with nothing done between. */
  async retried<Result>(attempt: () => Promise<Result>, doneBytes: () => number = () => 0): Promise<Result> {
    for (let failures = 0, before = doneBytes(); ; failures++) {
      try {
        return await attempt();
      } catch (error) {
        const now = doneBytes();
        if (now > before) failures = 0;
        before = now;
        if (!(error instanceof PassingError) || failures >= maxRetries) throw error;
        const waitMs = Math.min(maxWaitMs, error.waitMs ?? this.#pace.retryMs * 2 ** failures);
        this.#onRetry?.(error.message, waitMs);
        await sleep(waitMs, undefined, { signal: this.#signal }).catch(() => undefined);
        this.#signal.throwIfAborted();
      }
    }
  }

  async #once(url: URL, headers: Readonly<Record<string, string>>): Promise<HubAnswer> {
    const stalled = new AbortController();
    const timer = setTimeout(() => stalled.abort(), this.#pace.stallMs);
    const signal = AbortSignal.any([this.#signal, stalled.signal]);
    const fail = (cause: unknown): never => {
      clearTimeout(timer);
      this.#signal.throwIfAborted();
      const why = stalled.signal.aborted ? `nothing came for ${this.#pace.stallMs / 1000} s` : reasonOf(cause);
      const remedy = "look at the network, the proxy (HTTPS_PROXY) and the hub's address (HF_ENDPOINT)";
      throw new PassingError(`${url.host} cannot be reached or broke off (${why}): ${remedy}`);
    };
    const asked = { "user-agent": "spangate", "accept-encoding": "identity", ...headers };
    const response = await fetch(url, { headers: asked, redirect: "manual", signal }).catch(fail);
    timer.refresh();
    const close = (): void => {
      clearTimeout(timer);
      stalled.abort();
    };
    if ((response.headers.get("content-encoding") ?? "identity") !== "identity") {
      close();
      throw new HubError(`${url.host} sends what is encoded, which was not asked for`);
    }
    const pieces = async function* () {
      try {
        for await (const piece of response.body ?? []) {
          timer.refresh();
          yield piece;
        }
      } catch (error) {
        fail(error);
      } finally {
        close();
      }
    };
    return { status: response.status, ok: response.ok, headers: response.headers, pieces, close };
  }
}

export interface HubAnswer {
  readonly status: number;
  readonly ok: boolean;
  readonly headers: Headers;
  /** The body, once. @throws PassingError where it breaks off */
  pieces(): AsyncGenerator<Uint8Array>;
  /** Lets go of a body that is not read. */
  close(): void;
}

function reasonOf(error: unknown): string {
  const { code, message } = error as { readonly code?: unknown; readonly message?: unknown };
  return String(code ?? message ?? error);
}

function statusError(answer: HubAnswer, model: HubModel, { endpoint, token }: HubSettings): HubError {
  const { status, headers } = answer;
  const { id, revision } = model;
  const host = new URL(endpoint).host;
  const code = headers.get("x-error-code");
  if (code === "GatedRepo") {
    const page = `${endpoint}/${id}`;
    const then =
      token === undefined
        ? 'and then set HF_TOKEN to a token of yours (or "hf auth login")'
        : "with the account of your token";
    return new HubError(`${id} is gated: accept its terms at ${page} ${then}`);
  }
  if (code === "RevisionNotFound") return new HubError(`${id} has no revision "${revision}" on ${host}`);
  if (code === "EntryNotFound") return new HubError(`${hubModelText(model)}: a file that ${host} lists is not there`);
  if (code === "RepoNotFound" || status === 401 || status === 404) {
    const who = token === undefined ? "set HF_TOKEN if it is private" : "or the token may not read it";
    return new HubError(`there is no model ${id} on ${host}; ${who}`);
  }
  // What the hub says of itself, as text for a terminal.
  const said = (headers.get("x-error-message") ?? "").replace(/[^\x20-\x7e]+/g, " ").slice(0, 200);
  const text = `${host} answers ${status}${said && ` (${said})`} for ${hubModelText(model)}`;
  if (status === 429 || status >= 500 || status === 408) return new PassingError(text, retryAfterMs(headers));
  return new HubError(text);
}

function retryAfterMs(headers: Headers): number | undefined {
  const seconds = headers.get("retry-after") ?? "";
  return /^\d{1,6}$/.test(seconds) ? Number(seconds) * 1_000 : undefined;
}
