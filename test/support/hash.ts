/** Pseudo-random numbers of numbers, for oracles. */

/** Mixes two 32-bit numbers into one (the finalizer of MurmurHash3 over a multiply-add). */
export function mix(a: number, b: number): number {
  let hash = (Math.imul(a, 0x9e3779b1) + Math.imul(b, 0x85ebca77) + 0x27d4eb2f) | 0;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}
