/** An Int32Array that grows and keeps its memory: what is read of it is valid until the list is written again. */
export class IntList {
  memory: Int32Array;
  length = 0;

  constructor(capacity = 256) {
    this.memory = new Int32Array(capacity);
  }

  clear(): void {
    this.length = 0;
  }

  /** Clears it, and gives its memory back. */
  release(): void {
    this.length = 0;
    this.memory = new Int32Array(16);
  }

  push(value: number): void {
    if (this.length === this.memory.length) this.#reserve(1);
    this.memory[this.length++] = value;
  }

  push4(a: number, b: number, c: number, d: number): void {
    if (this.length + 4 > this.memory.length) this.#reserve(4);
    const { memory, length } = this;
    memory[length] = a;
    memory[length + 1] = b;
    memory[length + 2] = c;
    memory[length + 3] = d;
    this.length = length + 4;
  }

  append(values: Int32Array): void {
    this.#reserve(values.length);
    this.memory.set(values, this.length);
    this.length += values.length;
  }

  /** A loop, since TypedArray.set of a plain array is several times slower. */
  appendList(values: readonly number[]): void {
    this.#reserve(values.length);
    for (let i = 0; i < values.length; i++) this.memory[this.length + i] = values[i];
    this.length += values.length;
  }

  /** Makes the list `length` long; what is new in it is `value`. */
  resize(length: number, value: number): void {
    if (length > this.length) {
      this.#reserve(length - this.length);
      this.memory.fill(value, this.length, length);
    }
    this.length = length;
  }

  view(): Int32Array {
    return this.memory.subarray(0, this.length);
  }

  #reserve(extra: number): void {
    if (this.length + extra <= this.memory.length) return;
    const grown = new Int32Array(Math.max(this.length + extra, 2 * this.memory.length));
    grown.set(this.memory);
    this.memory = grown;
  }
}
