/**
 * Makes cache salts; no other file does. A salt is an HMAC over the owner of the text and an epoch. It cannot be
 * guessed, it differs between owners, and a rotation raises the epoch and so changes it. Salts go into block keys and
 * nowhere else: never into a log line, an event or an answer.
 */
import { createHmac } from "node:crypto";
import type { TenantId } from "../../db/ids.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import type { ServerSecret } from "./secret.ts";

export class Salts {
  readonly #key: Uint8Array;

  constructor(secret: ServerSecret) {
    this.#key = secret.derive("salt");
  }

  /** The salt of a tenant's own text. */
  ofTenant(tenantId: TenantId, epoch: number): CacheSalt {
    return this.#salt(["tenant", tenantId, String(epoch)]);
  }

  /** A part of what a tenant's salt reaches, such as the API's cache_salt asks for; it never reaches another tenant's. */
  within(tenantSalt: CacheSalt, subdivision: string): CacheSalt {
    return this.#salt(["subdivision", tenantSalt, subdivision]);
  }

  /** The salt of a corpus. All tenants with access to the corpus share the salt, and with it the corpus's KV. */
  ofCorpus(corpusId: string, epoch: number): CacheSalt {
    return this.#salt(["corpus", corpusId, String(epoch)]);
  }

  /** Every part is length-prefixed, so that no two lists of parts encode alike. */
  #salt(parts: readonly string[]): CacheSalt {
    const hmac = createHmac("sha256", this.#key);
    for (const part of parts) {
      const bytes = Buffer.from(part, "utf8");
      hmac.update(new Uint8Array(Uint32Array.of(bytes.byteLength).buffer));
      hmac.update(bytes);
    }
    return hmac.digest("base64") as CacheSalt;
  }
}
