/**
 * Names for tenants' texts, prompts and parts of requests, used where only equality counts. A name is an HMAC with a
 * secret that never leaves the process and lives as long as it, so nobody can find two texts with the same name.
 */
import { randomBytes } from "node:crypto";

/** Hexadecimal digits of a name: 128 bits. */
const nameChars = 32;

export class SecretNames {
  readonly #secret = randomBytes(32);

  /**
   * Makes the name of a list of parts. Each part is written with its type and its length, so that no two different
   * lists are written alike.
   * @param parts strings have to be well-formed Unicode
   */
  of(...parts: readonly (string | Uint8Array)[]): string {
    const hasher = new Bun.CryptoHasher("sha256", this.#secret);
    for (const part of parts) {
      hasher.update(typeof part === "string" ? `text ${part.length} ` : `bytes ${part.byteLength} `).update(part);
    }
    return hasher.digest("hex").slice(0, nameChars);
  }
}
