/** How much a test does: chaos and fuzz tests have a short form for `bun run check` and a long one for `check --all`. */
export const longVariable = "SPANGATE_TEST_LONG";

export const isLong: boolean = process.env[longVariable] === "1";

export const effort = (short: number, long: number): number => (isLong ? long : short);
