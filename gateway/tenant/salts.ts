/**
 * Makes cache salts; nothing else does. A salt is an HMAC over who owns the text and an epoch, so it cannot be
 * guessed, differs between owners, and is another one after a rotation. It goes into block keys and nowhere
 * else: never into a log line, an event or an answer.
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

  /** Salt of a tenant's own text. `subdivision` (the API's cache_salt) makes it narrower, never someone else's. */
  ofTenant(tenantId: TenantId, epoch: number, subdivision?: string): CacheSalt {
    const base = this.#salt(["tenant", tenantId, String(epoch)]);
    return subdivision === undefined ? base : this.#salt(["subdivision", base, subdivision]);
  }

  /** Salt of a corpus: tenants that were granted it share it, and its KV. */
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
