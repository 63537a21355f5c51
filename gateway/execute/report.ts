/** What ran of a tree, in the tree's order: inner generates before those that read them. */
import type { FinishedEvent } from "../dispatch/request.ts";
import type { EndEvent } from "../generation.ts";

export interface GenerateReport {
  readonly path: string;
  /** Of the sample, in a repeat. */
  readonly index: number;
  readonly end: EndEvent;
}

export class TreeReport {
  readonly #generates: (GenerateReport | undefined)[] = [];
  readonly #outer: GenerateReport[] = [];
  #preparedTokens = 0;
  #preparedCachedTokens = 0;
  #preparedWriteTokens = 0;

  /** Places for the samples of one generate. */
  reserve(count: number): readonly number[] {
    const first = this.#generates.length;
    for (let index = 0; index < count; index++) this.#generates.push(undefined);
    return Array.from({ length: count }, (_, index) => first + index);
  }

  ended(place: number, report: GenerateReport): void {
    this.#generates[place] = report;
  }

  /** An outermost generate: its runs are the answer's choices. */
  outerEnded(place: number, report: GenerateReport): void {
    this.ended(place, report);
    this.#outer.push(report);
  }

  prepared({ usage }: FinishedEvent): void {
    this.#preparedTokens += usage.promptTokens;
    this.#preparedCachedTokens += usage.cachedTokens;
    this.#preparedWriteTokens += usage.cacheWriteTokens;
  }

  /** Those that have ended. */
  get generates(): readonly GenerateReport[] {
    return this.#generates.filter((report) => report !== undefined);
  }

  get outer(): readonly GenerateReport[] {
    return this.#outer;
  }

  /** Tokens that were computed ahead of the generates that read them. */
  get preparedTokens(): { readonly all: number; readonly computed: number } {
    return { all: this.#preparedTokens, computed: this.#preparedTokens - this.#preparedCachedTokens };
  }

  /** Of all runs together. What the tree itself computed ahead of a run does not count as found by it. */
  usage() {
    const sum = (read: (end: EndEvent) => number): number =>
      this.generates.reduce((total, { end }) => total + read(end), 0);
    const promptTokens = sum(({ report }) => report.usage.promptTokens);
    const cachedTokens = sum(({ report }) => report.usage.cachedTokens) - this.preparedTokens.computed;
    return {
      promptTokens,
      completionTokens: sum((end) => end.completionTokens),
      cachedTokens: Math.max(0, cachedTokens),
      cacheWriteTokens: sum(({ report }) => report.usage.cacheWriteTokens) + this.#preparedWriteTokens,
    };
  }
}
