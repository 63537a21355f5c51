/**
 * Branded numbers: a type that refuses the wrong unit. A brand costs nothing at run time.
 */
declare const unit: unique symbol;
type Branded<Value, Name extends string> = Value & { readonly [unit]: Name };

/** Identity of a block in one worker's pool: 0 <= blockId < blockCount. */
export type BlockId = Branded<number, "BlockId">;
/** Cache identity of a block: 32 lowercase hex digits (128 bits of SHA-256), see block-key.ts. */
export type BlockKey = Branded<string, "BlockKey">;
export const blockKeyChars = 32;
/** Secret that every chain root is keyed with, as opaque bytes in base64; made by gateway/tenant/salts.ts only. */
export type CacheSalt = Branded<string, "CacheSalt">;

/** How many blocks hold `tokenCount` tokens (a ceiling: the last one may be partly filled). */
export function blockCountForTokens(tokenCount: number, blockTokens: number): number {
  return Math.ceil(tokenCount / blockTokens);
}

/** How many blocks `tokenCount` tokens fill completely (a floor). */
export const fullBlockCount = (tokenCount: number, blockTokens: number): number => Math.floor(tokenCount / blockTokens);

/** Dimensions of a head whose K or V share a scale where KV is held in mx8 (kernels/abi.h). */
export const mx8Group = 32;
