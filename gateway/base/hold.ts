/** A hold on something that is shared. It ends when it is called, or with the block that declares it by `using`. */
export type Hold = (() => void) & Disposable;

/** @param end gives back what is held; it has to bear that it is called again */
export function holdUntil(end: () => void): Hold {
  const hold = end as (() => void) & { [Symbol.dispose]: () => void };
  hold[Symbol.dispose] = end;
  return hold;
}

/** Calls `then` when the signal aborts, as long as the block goes on. It is not called for a signal that had aborted. */
export function onAbort(signal: AbortSignal | undefined, then: () => void): Disposable {
  signal?.addEventListener("abort", then, { once: true });
  return { [Symbol.dispose]: () => signal?.removeEventListener("abort", then) };
}

/** Resolves with the promise, or as soon as the signal aborts. */
export async function unlessAborted(promise: Promise<void>, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return;
  const aborted = Promise.withResolvers<void>();
  using _listener = onAbort(signal, aborted.resolve);
  await Promise.race([promise, aborted.promise]);
}
