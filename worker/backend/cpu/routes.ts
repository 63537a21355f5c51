/** Which rows go to which experts, and with which weight: the highest scores of each row, by softmax. */
import type { Experts } from "../../model/experts.ts";

/** What an expert was given. */
export interface Route {
  /** Where its rows begin when those of all experts stand one after the other. */
  readonly first: number;
  readonly count: number;
  /** [count], rising. */
  readonly rows: Int32Array;
  readonly factors: Float32Array;
}

export class Routes {
  readonly #experts: Pick<Experts, "count" | "perToken" | "normalised">;
  /** [experts + 1] where each expert's rows begin. */
  readonly #starts: Int32Array;
  /** [experts] where an expert's next row is written. */
  readonly #next: Int32Array;
  /** [rows * perToken] in the order of experts, and of rows. */
  readonly #rows: Int32Array;
  readonly #factors: Float32Array;
  /** [rows * perToken] of each row its experts, best first, and their weights. */
  readonly #chosen: Int32Array;
  readonly #weights: Float32Array;

  constructor(experts: Pick<Experts, "count" | "perToken" | "normalised">, maxRows: number) {
    const choices = maxRows * experts.perToken;
    this.#experts = experts;
    this.#starts = new Int32Array(experts.count + 1);
    this.#next = new Int32Array(experts.count);
    this.#rows = new Int32Array(choices);
    this.#factors = new Float32Array(choices);
    this.#chosen = new Int32Array(choices);
    this.#weights = new Float32Array(choices);
  }

  /** @param scores [rows, experts] */
  choose(scores: Float32Array, rows: number): void {
    const { count, perToken } = this.#experts;
    this.#starts.fill(0);
    for (let row = 0; row < rows; row++)
      this.#chooseOf(scores.subarray(row * count, (row + 1) * count), row * perToken);
    for (let i = 0; i < rows * perToken; i++) this.#starts[this.#chosen[i] + 1] += 1;
    for (let expert = 0; expert < count; expert++) this.#starts[expert + 1] += this.#starts[expert];
    this.#next.set(this.#starts.subarray(0, count));
    for (let i = 0; i < rows * perToken; i++) {
      const at = this.#next[this.#chosen[i]]++;
      this.#rows[at] = Math.floor(i / perToken);
      this.#factors[at] = this.#weights[i];
    }
  }

  /** [experts + 1] where each expert's rows begin, and all rows and weights, as those of each. */
  get all() {
    return { starts: this.#starts, rows: this.#rows, factors: this.#factors };
  }

  of(expert: number): Route {
    const [first, end] = [this.#starts[expert], this.#starts[expert + 1]];
    const [rows, factors] = [this.#rows.subarray(first, end), this.#factors.subarray(first, end)];
    return { first, count: end - first, rows, factors };
  }

  /** One row's experts and weights; of equal scores the expert with the lower number. A score that is NaN is the lowest. */
  #chooseOf(scores: Float32Array, at: number): void {
    const { count, perToken, normalised } = this.#experts;
    const [chosen, weights] = [this.#chosen, this.#weights];
    let found = 0;
    for (let expert = 0; expert < count; expert++) {
      const score = scoreOf(scores, expert);
      let place = found;
      while (place > 0 && score > scoreOf(scores, chosen[at + place - 1])) place--;
      if (place === perToken) continue;
      found = Math.min(found + 1, perToken);
      for (let i = found - 1; i > place; i--) chosen[at + i] = chosen[at + i - 1];
      chosen[at + place] = expert;
    }
    const greatest = scores[chosen[at]];
    let sum = 0;
    if (normalised) for (let i = 0; i < perToken; i++) sum += Math.exp(scores[chosen[at + i]] - greatest);
    else for (let expert = 0; expert < count; expert++) sum += Math.exp(scores[expert] - greatest);
    for (let i = 0; i < perToken; i++) weights[at + i] = Math.exp(scores[chosen[at + i]] - greatest) / sum;
  }
}

function scoreOf(scores: Float32Array, expert: number): number {
  const score = scores[expert];
  return Number.isNaN(score) ? Number.NEGATIVE_INFINITY : score;
}
