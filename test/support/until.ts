/** @throws Error naming what was waited for, when it has not come to be within the limit */
export async function until(
  condition: () => boolean | Promise<boolean>,
  what: string,
  limitMs = 20_000,
  everyMs = 20,
): Promise<void> {
  const deadlineMs = performance.now() + limitMs;
  while (!(await condition())) {
    if (performance.now() > deadlineMs) throw new Error(`not within ${limitMs} ms: ${what}`);
    await Bun.sleep(everyMs);
  }
}
