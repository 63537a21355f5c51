/**
 * Names for what belongs to tenants, where only equality counts: of texts, of prompts, of parts of requests. Nobody can
 * find two texts with one name: names are an HMAC with a secret that lives as long as the process and is never told.
 */
import { randomBytes } from "node:crypto";

/** Hexadecimal digits that are kept: 128 bits. */
const nameChars = 32;

export class SecretNames {
  readonly #secret = randomBytes(32);

  /**
   * Each part is written with its type and its length, so no two lists of parts are written alike.
   * @param parts strings are well formed
   */
  of(...parts: readonly (string | Uint8Array)[]): string {
    const hasher = new Bun.CryptoHasher("sha256", this.#secret);
    for (const part of parts) {
      hasher.update(typeof part === "string" ? `text ${part.length} ` : `bytes ${part.byteLength} `).update(part);
    }
    return hasher.digest("hex").slice(0, nameChars);
  }
}
