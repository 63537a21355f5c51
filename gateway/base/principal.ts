/** Who calls: scopes and the identity that an API key stands for. */
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

/** Of routes that show the platform's operators, and what watches for them, how all tenants fare. */
export const platformReaders = ["platform:admin", "platform:read"] as const satisfies readonly Scope[];

export interface Principal {
  readonly keyId: string;
  /** undefined: a platform key, which belongs to no tenant. */
  readonly tenantId: TenantId | undefined;
  readonly scopes: ReadonlySet<Scope>;
}

/** Whose a line of a batch is, which comes from within. */
export interface BatchCaller {
  readonly principal: Principal;
  readonly requestId: string;
}

/** Looks a key up by its hash. undefined: no such key, revoked, expired, or its tenant is disabled. */
export interface Authenticator {
  authenticate(apiKey: string): Principal | undefined;
}
