/** A hold on something that is shared. It ends when it is called, or with the block that declares it by `using`. */
export type Hold = (() => void) & Disposable;

/** @param end gives back what is held; it has to bear that it is called again */
export const holdUntil = (end: () => void): Hold => Object.assign(end, { [Symbol.dispose]: end });
