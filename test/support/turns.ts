/** Whether long work lets others go on. */

/** What the work gives, and how many turns of the event loop others had meanwhile. */
export async function turnsDuring<Result>(
  work: () => Result | Promise<Result>,
): Promise<{ readonly result: Result; readonly turns: number }> {
  let turns = 0;
  let isDone = false;
  const count = (): void => {
    turns += 1;
    if (!isDone) setImmediate(count);
  };
  setImmediate(count);
  try {
    return { result: await work(), turns };
  } finally {
    isDone = true;
  }
}
