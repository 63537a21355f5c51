/**
 * The seed that everything a test draws comes from. It is the same in every run, so that a run can be repeated;
 * `bun run fuzz` sets the variable to a new one in each round, and so does whoever repeats a failure.
 */
export const seedVariable = "SPANGATE_TEST_SEED";

const fixedSeed = 20_261_122;

/** @throws Error when the variable is no whole number of 31 bits */
export function testSeed(): number {
  const given = process.env[seedVariable];
  if (given === undefined) return fixedSeed;
  const seed = Number(given);
  if (!/^\d+$/.test(given) || seed >= 2 ** 31) throw new Error(`${seedVariable} is no number from 0 to ${2 ** 31 - 1}`);
  return seed;
}
