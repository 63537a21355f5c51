/**
 * Cache identity of blocks (vLLM's "block hash", salted at every chain root).
 *
 *   root   = H("spangate/1", modelDigest, salt, chainKind, parentKey | "")
 *   key[i] = H(key[i-1] | root, token ids, count)
 *
 * SHA-256 kept to 128 bits; a non-cryptographic hash would let a tenant build collisions
 * (CVE-2025-25183). Every field is length-prefixed or of fixed size, so no two inputs encode alike.
 */
import { type BlockKey, type CacheSalt, blockKeyChars as keyChars } from "./units.ts";

/** "blend" marks approximate KV; the share of recomputed tokens is part of the kind. */
export type ChainKind = "main" | "span" | `blend ${number}`;

const domain = "spangate/1";

const utf8 = new TextEncoder();
/**
 * The input of the hash is gathered here: hashing a few bytes in one call costs less than feeding a hasher in parts.
 */
const scratch = new Uint8Array(4_096);
const scratchView = new DataView(scratch.buffer);
const countBytes = 4;
/** The part of the scratch that holds a block's tokens, behind the previous key and their count. */
const scratchTokens = new Int32Array(scratch.buffer, keyChars + countBytes);

const keyOf = (bytes: Uint8Array): BlockKey => Bun.SHA256.hash(bytes, "hex").slice(0, keyChars) as BlockKey;

/** Hashes the parts, each preceded by its length. */
function digest(parts: readonly string[]): BlockKey {
  let at = 0;
  for (const part of parts) {
    const { read, written } = utf8.encodeInto(part, scratch.subarray(at + countBytes));
    if (read < part.length) throw new Error("a field of a key is too long");
    scratchView.setUint32(at, written, true);
    at += countBytes + written;
  }
  return keyOf(scratch.subarray(0, at));
}

/**
 * Key of a chain before its first token. `parentKey` is the last key of the chain it also attends to
 * (a declared preamble), absent for a chain that starts at position 0.
 */
export function rootKey(modelDigest: string, salt: CacheSalt, kind: ChainKind, parentKey?: BlockKey): BlockKey {
  return digest([domain, modelDigest, salt, kind, parentKey ?? ""]);
}

/** Key of a main chain after it passed a span: the span's last key is folded into its own, in order. */
export const foldSpan = (mainKey: BlockKey, spanKey: BlockKey): BlockKey => digest(["fold", mainKey, spanKey]);

/** Key of the block that holds exactly `tokenIds` and follows the block or root with the key `previousKey`. */
export function nextBlockKey(previousKey: BlockKey, tokenIds: Int32Array): BlockKey {
  const byteCount = keyChars + countBytes + tokenIds.byteLength;
  const isSmall = tokenIds.length <= scratchTokens.length;
  const bytes = isSmall ? scratch.subarray(0, byteCount) : new Uint8Array(byteCount);
  const tokens = isSmall ? scratchTokens : new Int32Array(bytes.buffer, keyChars + countBytes);
  if (utf8.encodeInto(previousKey, bytes).written !== keyChars) throw new Error("a key has another length");
  (isSmall ? scratchView : new DataView(bytes.buffer)).setUint32(keyChars, tokenIds.length, true);
  tokens.set(tokenIds);
  return keyOf(bytes);
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
