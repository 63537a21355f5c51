/** Short secrets, sealed by a key: a nonce, a tag and the AES-256-GCM ciphertext, in this order. */
import { createCipheriv, createDecipheriv, randomBytes } from "node:crypto";

const [cipherName, nonceBytes, tagBytes] = ["aes-256-gcm", 12, 16] as const;

/**
 * @param by 32 bytes
 * @param owner what the secret belongs to; sealed for one, it opens for no other
 */
export function sealBytes(by: Uint8Array, secret: Uint8Array, owner: string): Buffer {
  const nonce = randomBytes(nonceBytes);
  const cipher = createCipheriv(cipherName, by, nonce).setAAD(Buffer.from(owner));
  const sealed = Buffer.concat([cipher.update(secret), cipher.final()]);
  return Buffer.concat([nonce, cipher.getAuthTag(), sealed]);
}

/** @throws Error when it was sealed for another, or is damaged */
export function openSealed(by: Uint8Array, sealed: Uint8Array, owner: string): Buffer {
  const decipher = createDecipheriv(cipherName, by, sealed.subarray(0, nonceBytes));
  decipher.setAAD(Buffer.from(owner)).setAuthTag(sealed.subarray(nonceBytes, nonceBytes + tagBytes));
  return Buffer.concat([decipher.update(sealed.subarray(nonceBytes + tagBytes)), decipher.final()]);
}
