/** Choices that come side by side, written one after the other: text of one whose turn has not come waits. */
export class ChoiceWriter {
  readonly #write: (text: string) => void;
  readonly #waiting = new Map<number, string>();
  readonly #ended = new Set<number>();
  /** The choice whose turn it is, and the last whose heading was written; the first has none. */
  #turn = 0;
  #headed = 0;

  constructor(write: (text: string) => void) {
    this.#write = write;
  }

  add(index: number, text: string): void {
    if (text === "") return;
    if (index === this.#turn) this.#put(text);
    else this.#waiting.set(index, (this.#waiting.get(index) ?? "") + text);
  }

  /** Nothing follows of this choice. */
  end(index: number): void {
    this.#ended.add(index);
    while (this.#ended.has(this.#turn)) {
      this.#turn += 1;
      this.#put(this.#waiting.get(this.#turn) ?? "");
    }
  }

  #put(text: string): void {
    if (text === "") return;
    if (this.#headed < this.#turn) this.#write(`\n\n--- ${this.#turn + 1} ---\n`);
    this.#headed = this.#turn;
    this.#write(text);
  }
}
