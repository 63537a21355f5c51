/**
 * The limit is for what never comes: a test on a busy machine may wait for long, and has a minute in all.
 * @throws Error naming what was waited for, when it has not come to be within the limit
 */
export async function until(
  condition: () => boolean | Promise<boolean>,
  what: string,
  limitMs = 40_000,
  everyMs = 20,
): Promise<void> {
  const deadlineMs = performance.now() + limitMs;
  while (!(await condition())) {
    if (performance.now() > deadlineMs) throw new Error(`not within ${limitMs} ms: ${what}`);
    await Bun.sleep(everyMs);
  }
}
