/** Tells whoever keeps the session that the server does not know it any more. */
type Listener = (why: string) => void;

const listeners = new Set<Listener>();

export function whenSessionEnds(listener: Listener): void {
  listeners.add(listener);
}

export function sessionEnded(why: string): void {
  for (const listener of listeners) listener(why);
}
