/** The caller: its scopes, and the identity that its API key stands for. */
import type { TenantId } from "../../db/ids.ts";
export const scopes = [
  "inference",
  "corpus:read",
  "corpus:write",
  "corpus:prepare",
  "tenant:admin",
  "platform:read",
  "platform:admin",
] as const;

export type Scope = (typeof scopes)[number];

/**
 * Scopes for routes that show all tenants' state to the platform's operators and their monitoring; either one is
 * enough.
 */
export const platformReaders = ["platform:admin", "platform:read"] as const satisfies readonly Scope[];

export interface Principal {
  readonly keyId: string;
  /** The caller's tenant. undefined: a platform key, which belongs to no tenant. */
  readonly tenantId: TenantId | undefined;
  readonly scopes: ReadonlySet<Scope>;
  /** When the key ends to be valid, in Unix milliseconds; absent: never. */
  readonly expiresAt?: number;
}

/** A key that was valid once. Only who holds it learns that. */
export interface ExpiredKey {
  readonly expiredAt: number;
}

/** The caller of a batch's line. The request comes from inside the server, not over HTTP. */
export interface BatchCaller {
  readonly principal: Principal;
  readonly requestId: string;
}

/** Looks up a key by its hash. undefined: the key does not exist or is revoked, or its tenant is disabled. */
export interface Authenticator {
  authenticate(apiKey: string): Principal | ExpiredKey | undefined;
}
