/**
 * Sessions of the console: a cookie stands for an API key, which is looked up again for every request, so that a key
 * that is revoked, has expired or belongs to a disabled tenant ends its sessions at once. Cookies are kept as HMACs, in
 * memory alone: a restart ends every session.
 */
import { createHmac, randomBytes } from "node:crypto";
import type { ApiKeyId } from "../../db/ids.ts";
import type { Principal } from "./principal.ts";
import type { ServerSecret } from "./secret.ts";

export interface SessionBounds {
  /** How long a session lasts, and how long without a request. */
  readonly sessionMs: number;
  readonly sessionIdleMs: number;
  /** When there are more, the one that was begun first ends. */
  readonly sessionsPerKey: number;
  readonly sessions: number;
  readonly signInLinks: number;
}

interface Session {
  readonly keyId: ApiKeyId;
  readonly endsAtMs: number;
  usedAtMs: number;
}

export interface BegunSession {
  /** For the cookie. Nobody else ever has it. */
  readonly token: string;
  /** Unix time in milliseconds. */
  readonly endsAtMs: number;
}

export interface SessionDeps {
  readonly secret: ServerSecret;
  /** The principal of a key that is valid now. */
  readonly principalOf: (keyId: ApiKeyId) => Principal | undefined;
  readonly bounds: SessionBounds;
  readonly nowMs: () => number;
}

export class Sessions {
  readonly #deps: SessionDeps;
  readonly #hashKey: Uint8Array;
  /** By the token's HMAC; the one that was begun first comes first. */
  readonly #sessions = new Map<string, Session>();
  /** Keys that a link signs in with, by the HMAC of the link's token. */
  readonly #links = new Map<string, ApiKeyId>();

  constructor(deps: SessionDeps) {
    this.#deps = deps;
    this.#hashKey = deps.secret.derive("console-session");
  }

  begin(keyId: ApiKeyId): BegunSession {
    const { bounds, nowMs } = this.#deps;
    const now = nowMs();
    this.#makeRoom(keyId, now);
    const token = newToken();
    const endsAtMs = now + bounds.sessionMs;
    this.#sessions.set(this.#hash(token), { keyId, endsAtMs, usedAtMs: now });
    return { token, endsAtMs };
  }

  /** Whom the session stands for, and until when it lasts at most. undefined: there is no such session any more. */
  find(token: string): { readonly principal: Principal; readonly endsAtMs: number } | undefined {
    const hash = this.#hash(token);
    const session = this.#sessions.get(hash);
    if (session === undefined) return undefined;
    const now = this.#deps.nowMs();
    const principal = this.#isOver(session, now) ? undefined : this.#deps.principalOf(session.keyId);
    if (principal === undefined) {
      this.#sessions.delete(hash);
      return undefined;
    }
    session.usedAtMs = now;
    return { principal, endsAtMs: session.endsAtMs };
  }

  /** Whether there is such a session. Asking is no use of it. */
  isOpen(token: string): boolean {
    const session = this.#sessions.get(this.#hash(token));
    if (session === undefined || this.#isOver(session, this.#deps.nowMs())) return false;
    return this.#deps.principalOf(session.keyId) !== undefined;
  }

  end(token: string): void {
    this.#sessions.delete(this.#hash(token));
  }

  /** The token of a link that signs in with the key, once. */
  makeLink(keyId: ApiKeyId): string {
    const [oldest] = this.#links.keys();
    if (oldest !== undefined && this.#links.size >= this.#deps.bounds.signInLinks) this.#links.delete(oldest);
    const token = newToken();
    this.#links.set(this.#hash(token), keyId);
    return token;
  }

  /** The principal that a link signs in, which signs nobody in again. */
  takeLink(token: string): Principal | undefined {
    const hash = this.#hash(token);
    const keyId = this.#links.get(hash);
    this.#links.delete(hash);
    return keyId === undefined ? undefined : this.#deps.principalOf(keyId);
  }

  #isOver({ endsAtMs, usedAtMs }: Session, now: number): boolean {
    return now >= endsAtMs || now - usedAtMs >= this.#deps.bounds.sessionIdleMs;
  }

  #makeRoom(keyId: ApiKeyId, now: number): void {
    for (const [hash, session] of this.#sessions) if (this.#isOver(session, now)) this.#sessions.delete(hash);
    const { sessions, sessionsPerKey } = this.#deps.bounds;
    const own = [...this.#sessions].filter(([, session]) => session.keyId === keyId);
    const gone = own.slice(0, Math.max(0, own.length - sessionsPerKey + 1)).map(([hash]) => hash);
    for (const hash of gone) this.#sessions.delete(hash);
    const [first] = this.#sessions.keys();
    if (first !== undefined && this.#sessions.size >= sessions) this.#sessions.delete(first);
  }

  #hash(token: string): string {
    return createHmac("sha256", this.#hashKey).update(token, "utf8").digest("base64url");
  }
}

const newToken = (): string => randomBytes(32).toString("base64url");
