/** API keys: 256 random bits, shown once, stored as an HMAC under the server's secret, looked up by hash. */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import {
  type ApiKeyRow,
  countPlatformKeys,
  findApiKey,
  findApiKeyByHash,
  insertApiKey,
  listApiKeys,
  revokeApiKey,
} from "../../db/api-keys.ts";
import { type ApiKeyId, newId, type TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Page, PageRange } from "../../db/page.ts";
import { ApiError } from "../errors.ts";
import { type Authenticator, type Principal, type Scope, scopes } from "../principal.ts";
import type { ServerSecret } from "./secret.ts";

export interface MintedApiKey {
  readonly row: ApiKeyRow;
  /** The secret itself; this is the only time it exists outside its owner's hands. */
  readonly apiKey: string;
}

/** Characters of a key that lists show. */
const prefixChars = 10;

export class ApiKeys implements Authenticator {
  readonly #db: Db;
  readonly #hashKey: Uint8Array;

  constructor(db: Db, secret: ServerSecret) {
    this.#db = db;
    this.#hashKey = secret.derive("api-key");
  }

  authenticate(apiKey: string): Principal | undefined {
    const hash = this.#hash(apiKey);
    const found = findApiKeyByHash(this.#db, hash);
    if (found === undefined || !timingSafeEqual(found.hash, hash)) return undefined;
    const known = found.scopes.filter((name): name is Scope => (scopes as readonly string[]).includes(name));
    return { keyId: found.id, tenantId: found.tenantId ?? undefined, scopes: new Set(known) };
  }

  /**
   * A key for a tenant, made by someone who holds every scope it gets.
   * @throws ApiError insufficient_scope with param `scopes`
   */
  mint(minter: Principal, tenantId: TenantId, name: string, wanted: readonly Scope[]): MintedApiKey {
    const lacking = wanted.filter((scope) => !minter.scopes.has(scope));
    if (lacking.length > 0) {
      throw new ApiError("insufficient_scope", {
        message: `A key cannot give scopes it lacks itself: ${lacking.join(", ")}.`,
        param: "scopes",
      });
    }
    return this.#insert(tenantId, name, wanted, newApiKey());
  }

  /**
   * The first platform key, with every scope so that it can mint any. undefined when there has been one.
   * @param given the operator's own key (SPANGATE_ADMIN_KEY); made here when absent
   */
  bootstrap(given: string | undefined): { apiKey: string; generated: boolean } | undefined {
    if (countPlatformKeys(this.#db) > 0) return undefined;
    if (given !== undefined && !/^[\x21-\x7e]{20,256}$/.test(given)) {
      throw new Error("SPANGATE_ADMIN_KEY must be 20 to 256 printable ASCII characters without spaces");
    }
    const { apiKey } = this.#insert(null, "first platform key", scopes, given ?? newApiKey());
    return { apiKey, generated: given === undefined };
  }

  list(tenantId: TenantId, range: PageRange): Page<ApiKeyRow> {
    return listApiKeys(this.#db, tenantId, range);
  }

  find(id: ApiKeyId): ApiKeyRow | undefined {
    return findApiKey(this.#db, id);
  }

  /** From the next request on the key is unknown. @returns false: revoked already. */
  revoke(id: ApiKeyId): boolean {
    return revokeApiKey(this.#db, id, Date.now());
  }

  #insert(tenantId: TenantId | null, name: string, granted: readonly Scope[], apiKey: string): MintedApiKey {
    const row = insertApiKey(this.#db, {
      id: newId("apiKey"),
      tenantId,
      name,
      hash: this.#hash(apiKey),
      prefix: apiKey.slice(0, prefixChars),
      scopes: scopes.filter((scope) => granted.includes(scope)),
      createdAt: Date.now(),
    });
    return { row, apiKey };
  }

  #hash(apiKey: string): Uint8Array {
    return createHmac("sha256", this.#hashKey).update(apiKey, "utf8").digest();
  }
}

function newApiKey(): string {
  return `sk-${randomBytes(32).toString("base64url")}`;
}
