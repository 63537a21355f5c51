/**
 * Cache identity of blocks (vLLM's "block hash", salted at every chain root).
 *
 *   root   = H("spangate/1", modelDigest, salt, chainKind, parentKey | "")
 *   key[i] = H(key[i-1] | root, token ids, count)
 *
 * SHA-256 kept to 128 bits; a non-cryptographic hash would let a tenant build collisions
 * (CVE-2025-25183). Every field is length-prefixed or of fixed size, so no two inputs encode alike.
 */
import type { BlockKey, CacheSalt } from "./units.ts";

/** "blend": KV is an approximation, of a share of recomputed tokens that is part of the kind. */
export type ChainKind = "main" | "span" | `blend ${number}`;

const domain = "spangate/1";

function digest(parts: readonly (string | Uint8Array)[]): BlockKey {
  const hasher = new Bun.CryptoHasher("sha256");
  for (const part of parts) {
    const bytes = typeof part === "string" ? new TextEncoder().encode(part) : part;
    hasher.update(new Uint8Array(Uint32Array.of(bytes.byteLength).buffer));
    hasher.update(bytes);
  }
  return hasher.digest("hex").slice(0, 32) as BlockKey;
}

/**
 * Key of a chain before its first token. `parentKey` is the last key of the chain it also attends to
 * (a declared preamble), absent for a chain that starts at position 0.
 */
export function rootKey(modelDigest: string, salt: CacheSalt, kind: ChainKind, parentKey?: BlockKey): BlockKey {
  return digest([domain, modelDigest, salt, kind, parentKey ?? ""]);
}

/** Key of a main chain after it passed a span: the span's last key is folded into its own, in order. */
export function foldSpan(mainKey: BlockKey, spanKey: BlockKey): BlockKey {
  return digest(["fold", mainKey, spanKey]);
}

/** Key of the block that holds exactly `tokenIds` after what `previousKey` stands for. */
export function nextBlockKey(previousKey: BlockKey, tokenIds: Int32Array): BlockKey {
  const hasher = new Bun.CryptoHasher("sha256");
  hasher.update(previousKey);
  hasher.update(new Uint8Array(Uint32Array.of(tokenIds.length).buffer));
  hasher.update(new Uint8Array(tokenIds.buffer, tokenIds.byteOffset, tokenIds.byteLength));
  return hasher.digest("hex").slice(0, 32) as BlockKey;
}

/**
 * Keys of a run of tokens, one a block of `blockTokens`.
 * @param closed true when no token will follow: the partly filled last block is keyed too, with its count.
 */
export function runBlockKeys(root: BlockKey, tokenIds: Int32Array, blockTokens: number, closed: boolean): BlockKey[] {
  const keys: BlockKey[] = [];
  let key = root;
  for (let start = 0; start < tokenIds.length; start += blockTokens) {
    const end = Math.min(start + blockTokens, tokenIds.length);
    if (end - start < blockTokens && !closed) break;
    key = nextBlockKey(key, tokenIds.subarray(start, end));
    keys.push(key);
  }
  return keys;
}
