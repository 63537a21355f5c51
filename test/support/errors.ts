/**
 * What a promise is rejected with; undefined: it is not. `expect(…).rejects` would hold the loop, in which the answer of a
 * thread comes.
 */
export const errorOf = (run: Promise<unknown>): Promise<unknown> =>
  run.then(
    () => undefined,
    (error: unknown) => error,
  );
