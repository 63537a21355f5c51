/**
 * Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011; the constants are Random123's). A number depends on (seed, index) alone, so a token drawn again
 * after a preemption, or beside other requests, is the same token.
 */
const multiplier0 = 0xd2511f53;
const multiplier1 = 0xcd9e8d57;
const weyl0 = 0x9e3779b9;
const weyl1 = 0xbb67ae85;
const rounds = 10;
const two32 = 4_294_967_296;

type Words = readonly [number, number, number, number];

/** High 32 bits of the 64-bit product of two unsigned 32-bit numbers. */
function multiplyHigh(a: number, b: number): number {
  const aLow = a & 0xffff;
  const aHigh = a >>> 16;
  const bLow = b & 0xffff;
  const bHigh = b >>> 16;
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const carry = (middle % 0x10000) + aLow * bHigh;
  return (aHigh * bHigh + Math.floor(middle / 0x10000) + Math.floor(carry / 0x10000)) >>> 0;
}

/** Philox 4x32-10: a 128-bit counter and a 64-bit key to 128 random bits, as unsigned 32-bit words. */
export function philox4x32(counter: Words, key: readonly [number, number]): Words {
  let [c0, c1, c2, c3] = counter;
  let [k0, k1] = key;
  for (let round = 0; round < rounds; round++) {
    const high0 = multiplyHigh(multiplier0, c0);
    const low0 = Math.imul(multiplier0, c0) >>> 0;
    const high1 = multiplyHigh(multiplier1, c2);
    const low1 = Math.imul(multiplier1, c2) >>> 0;
    [c0, c1, c2, c3] = [(high1 ^ c1 ^ k0) >>> 0, low1, (high0 ^ c3 ^ k1) >>> 0, low0];
    k0 = (k0 + weyl0) >>> 0;
    k1 = (k1 + weyl1) >>> 0;
  }
  return [c0, c1, c2, c3];
}

/**
 * The `index`-th number of a seed's stream, uniform in [0, 1) with 53 bits.
 * @param seed any safe integer; negative ones have streams of their own.
 */
export function uniform(seed: number, index: number): number {
  const key = [seed >>> 0, Math.floor(seed / two32) >>> 0] as const;
  const [high, low] = philox4x32([index >>> 0, Math.floor(index / two32) >>> 0, 0, 0], key);
  return ((high >>> 5) * 67_108_864 + (low >>> 6)) / 9_007_199_254_740_992;
}
