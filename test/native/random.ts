/** Random numbers from a seed (mulberry32), for tests of kernels. */
export class Random {
  #state: number;
  #normals: Float32Array | undefined;
  readonly seed: number;

  constructor(seed: number) {
    this.seed = seed >>> 0;
    this.#state = this.seed;
  }

  /** In [0, 1). */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  /** Whole number in [low, high]. */
  integer(low: number, high: number): number {
    return low + Math.floor(this.next() * (high - low + 1));
  }

  pick<Value>(values: readonly Value[]): Value {
    const value = values[this.integer(0, values.length - 1)];
    if (value === undefined) throw new RangeError("nothing to pick from");
    return value;
  }

  normal(): number {
    return Math.sqrt(-2 * Math.log(1 - this.next())) * Math.cos(2 * Math.PI * this.next());
  }

  /** Unit normals, one in `outlierEvery` of them thirty times as large; drawn from a table of 4,096 fresh ones. */
  normals(count: number, outlierEvery = 500): Float32Array {
    this.#normals ??= Float32Array.from({ length: 4096 }, () => this.normal());
    const out = new Float32Array(count);
    for (let i = 0; i < count; i++) {
      const value = this.#normals[Math.floor(this.next() * 4096)] ?? 0;
      out[i] = this.next() * outlierEvery < 1 ? value * 30 : value;
    }
    return out;
  }

  shuffle<Value>(values: Value[]): Value[] {
    for (let i = values.length - 1; i > 0; i--) {
      const j = this.integer(0, i);
      const held = values[i] as Value;
      values[i] = values[j] as Value;
      values[j] = held;
    }
    return values;
  }
}
