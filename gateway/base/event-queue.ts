/** A queue between one producer and one consumer that reads it as an async iterator. */
export class EventQueue<T> implements AsyncIterableIterator<T> {
  readonly #items: T[] = [];
  readonly #onReturn: (unread: readonly T[], open: boolean) => void;
  #waiting: { resolve(result: IteratorResult<T>): void; reject(reason: unknown): void } | undefined;
  #end: { readonly error: unknown } | "done" | undefined;

  /** @param onReturn called when the consumer stops reading; `open` is true while nothing has ended the queue */
  constructor(onReturn: (unread: readonly T[], open: boolean) => void) {
    this.#onReturn = onReturn;
  }

  /** Adds an item. After the queue has ended, items are dropped. */
  push(item: T): void {
    if (this.#end !== undefined) return;
    const waiting = this.#waiting;
    if (waiting === undefined) {
      this.#items.push(item);
      return;
    }
    this.#waiting = undefined;
    waiting.resolve({ value: item, done: false });
  }

  /** Ends the queue. Items that were pushed before are still read. */
  end(): void {
    if (this.#end !== undefined) return;
    this.#end = "done";
    this.#waiting?.resolve({ value: undefined, done: true });
    this.#waiting = undefined;
  }

  /** Ends the queue with an error, which is thrown after the items that were pushed before are read. */
  fail(error: unknown): void {
    if (this.#end !== undefined) return;
    this.#end = { error };
    this.#waiting?.reject(error);
    this.#waiting = undefined;
  }

  next(): Promise<IteratorResult<T>> {
    const item = this.#items.shift();
    if (item !== undefined) return Promise.resolve({ value: item, done: false });
    if (this.#end === "done") return Promise.resolve({ value: undefined, done: true });
    if (this.#end !== undefined) {
      const { error } = this.#end;
      this.#end = "done";
      return Promise.reject(error);
    }
    const { promise, resolve, reject } = Promise.withResolvers<IteratorResult<T>>();
    this.#waiting = { resolve, reject };
    return promise;
  }

  return(): Promise<IteratorResult<T>> {
    const open = this.#end === undefined;
    this.end();
    this.#onReturn(this.#items.splice(0), open);
    return Promise.resolve({ value: undefined, done: true });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
