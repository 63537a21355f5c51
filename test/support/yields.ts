/** Whether long work lets others go on. */

/** What the work gives, and how often others went on meanwhile. */
export async function yieldsDuring<Result>(
  work: () => Result | Promise<Result>,
): Promise<{ readonly result: Result; readonly yields: number }> {
  let yields = 0;
  let isDone = false;
  const count = (): void => {
    yields += 1;
    if (!isDone) setImmediate(count);
  };
  setImmediate(count);
  try {
    return { result: await work(), yields };
  } finally {
    isDone = true;
  }
}
