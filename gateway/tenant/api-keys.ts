/** API keys: 256 random bits, shown once, stored as an HMAC under the server's secret, looked up by hash. */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import {
  type ApiKeyIdentity,
  type ApiKeyRow,
  countOtherAdminKeys,
  countPlatformKeys,
  findApiKey,
  findApiKeyByHash,
  insertApiKey,
  listApiKeys,
  revokeApiKey,
  revokePlatformKeys,
} from "../../db/api-keys.ts";
import { type ApiKeyId, newId, parseId, type TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Page, PageRange } from "../../db/page.ts";
import { Remembered } from "../../db/remembered.ts";
import { ApiError } from "../base/errors.ts";
import { type Authenticator, type ExpiredKey, type Principal, type Scope, scopes } from "./principal.ts";
import type { ServerSecret } from "./secret.ts";

export interface MintedApiKey {
  readonly row: ApiKeyRow;
  /** The secret itself; this is the only time it exists outside its owner's hands. */
  readonly apiKey: string;
}

function principalOf({ id, tenantId, scopes: names, expiresAt }: ApiKeyIdentity): Principal {
  const known = names.filter((name): name is Scope => (scopes as readonly string[]).includes(name));
  const principal = { keyId: id, tenantId: tenantId ?? undefined, scopes: new Set(known) };
  return expiresAt === null ? principal : { ...principal, expiresAt };
}

const hasExpired = ({ expiresAt }: Pick<ApiKeyIdentity, "expiresAt">): boolean =>
  expiresAt !== null && Date.now() >= expiresAt;

/** Characters of a key that lists of keys show. */
const prefixChars = 10;
/** Identities of this many keys are remembered, because every request asks for one. */
const rememberedKeys = 4_096;

export class ApiKeys implements Authenticator {
  readonly #db: Db;
  readonly #hashKey: Uint8Array;
  /** By the key's hash; the keys themselves are not kept. */
  readonly #known: Remembered<{ readonly identity: ApiKeyIdentity; readonly principal: Principal }>;

  constructor(db: Db, secret: ServerSecret) {
    this.#db = db;
    this.#known = new Remembered(db, rememberedKeys);
    this.#hashKey = secret.derive("api-key");
  }

  authenticate(apiKey: string): Principal | ExpiredKey | undefined {
    const hash = this.#hash(apiKey);
    const known = this.#known.get(hash.toString("hex"), () => {
      const identity = findApiKeyByHash(this.#db, hash);
      return identity === undefined ? undefined : { identity, principal: principalOf(identity) };
    });
    if (known === undefined || !timingSafeEqual(known.identity.hash, hash)) return undefined;
    const { identity, principal } = known;
    return hasExpired(identity) ? { expiredAt: identity.expiresAt ?? 0 } : principal;
  }

  /** The principal of a key that is valid now. */
  valid(apiKey: string): Principal | undefined {
    const found = this.authenticate(apiKey);
    return found === undefined || "expiredAt" in found ? undefined : found;
  }

  /** The principal of a key that was looked up earlier. undefined: the key is not valid any more. */
  principalOf(id: ApiKeyId): Principal | undefined {
    const row = findApiKey(this.#db, id);
    const found = row === undefined ? undefined : findApiKeyByHash(this.#db, row.hash);
    return found === undefined || hasExpired(found) ? undefined : principalOf(found);
  }

  /**
   * Makes a key for a tenant. The minter needs every scope that the key gets; an administrator of the platform may also
   * give the scope to read the platform. A key that expires makes none that outlives it: it would make its own
   * successor.
   * @param expiresInS seconds from now on; undefined: it never expires
   * @throws ApiError insufficient_scope with param `scopes`; invalid_value with param `expires_in_seconds`
   */
  mint(
    minter: Principal,
    tenantId: TenantId,
    name: string,
    wanted: readonly Scope[],
    expiresInS?: number,
  ): MintedApiKey {
    const gives = (scope: Scope): boolean =>
      minter.scopes.has(scope) || (scope === "platform:read" && minter.scopes.has("platform:admin"));
    const lacking = wanted.filter((scope) => !gives(scope));
    if (lacking.length > 0) {
      throw new ApiError("insufficient_scope", {
        message: `A key cannot give scopes it lacks itself: ${lacking.join(", ")}.`,
        param: "scopes",
      });
    }
    const expiresAt = expiresInS === undefined ? null : Date.now() + expiresInS * 1000;
    if (minter.expiresAt !== undefined && (expiresAt ?? Number.POSITIVE_INFINITY) > minter.expiresAt) {
      const message = `This key expires at ${timeOf(minter.expiresAt)}, and cannot make one that is valid for longer.`;
      throw new ApiError("invalid_value", { param: "expires_in_seconds", message });
    }
    return this.#insert(tenantId, name, wanted, newApiKey(), expiresAt);
  }

  /**
   * Makes the first platform key, with every scope so that it can mint any other key. undefined: the server had such a
   * key before.
   * @param given the operator's own key (SPANGATE_ADMIN_KEY); a random key is made when it is absent
   */
  bootstrap(given: string | undefined): { apiKey: string; generated: boolean } | undefined {
    if (countPlatformKeys(this.#db) > 0) return undefined;
    if (given !== undefined && !/^[\x21-\x7e]{20,256}$/.test(given)) {
      throw new Error("SPANGATE_ADMIN_KEY must be 20 to 256 printable ASCII characters without spaces");
    }
    const { apiKey } = this.#insert(null, "first platform key", scopes, given ?? newApiKey());
    return { apiKey, generated: given === undefined };
  }

  /** Makes a platform key beside those that there are. */
  mintPlatform(name: string): MintedApiKey {
    return this.#insert(null, name, scopes, newApiKey());
  }

  /** Makes a platform key in place of all that belong to no tenant, for an operator who has lost the first one. */
  replacePlatformKeys(): MintedApiKey {
    revokePlatformKeys(this.#db, Date.now());
    return this.#insert(null, "platform key of a reset", scopes, newApiKey());
  }

  list(tenantId: TenantId, range: PageRange): Page<ApiKeyRow> {
    return listApiKeys(this.#db, tenantId, range);
  }

  /**
   * Finds a key that `caller` may manage: any key with platform:admin, otherwise only keys of its own tenant.
   * @throws ApiError not_found
   */
  get(caller: Principal, rawId: string): ApiKeyRow {
    const id = parseId("apiKey", rawId);
    const row = id === undefined ? undefined : findApiKey(this.#db, id);
    const allowed =
      caller.scopes.has("platform:admin") || (caller.tenantId !== undefined && row?.tenantId === caller.tenantId);
    if (row === undefined || !allowed) throw new ApiError("not_found");
    return row;
  }

  /**
   * Revokes a key: it is unknown from the next request on. Revoking a key twice is no error.
   * @throws ApiError not_found; conflict for the last key that can administer the platform
   */
  revoke(caller: Principal, rawId: string): ApiKeyRow {
    const row = this.get(caller, rawId);
    if (row.scopes.includes("platform:admin") && countOtherAdminKeys(this.#db, row.id) === 0) {
      throw new ApiError("conflict", { message: "This is the last key with the scope platform:admin." });
    }
    revokeApiKey(this.#db, row.id, Date.now());
    return this.get(caller, rawId);
  }

  #insert(
    tenantId: TenantId | null,
    name: string,
    granted: readonly Scope[],
    apiKey: string,
    expiresAt: number | null = null,
  ): MintedApiKey {
    const row = insertApiKey(this.#db, {
      id: newId("apiKey"),
      tenantId,
      name,
      hash: this.#hash(apiKey),
      prefix: apiKey.slice(0, prefixChars),
      scopes: scopes.filter((scope) => granted.includes(scope)),
      createdAt: Date.now(),
      expiresAt,
    });
    return { row, apiKey };
  }

  #hash(apiKey: string): Buffer {
    return createHmac("sha256", this.#hashKey).update(apiKey, "utf8").digest();
  }
}

const newApiKey = (): string => `sk-${randomBytes(32).toString("base64url")}`;

/** `2026-12-24T18:00:00Z` */
const timeOf = (unixMs: number): string => `${new Date(unixMs).toISOString().slice(0, 19)}Z`;

/** Why a key that has expired is refused. */
export const expiredError = ({ expiredAt }: ExpiredKey): ApiError =>
  new ApiError("api_key_expired", { message: `The API key expired at ${timeOf(expiredAt)}.` });
