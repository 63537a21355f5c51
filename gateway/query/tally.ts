/** Counts how much of its limits one query uses while it is parsed. */
import { refuse, stringOf } from "./check.ts";
import { type Expansion, expansionOf, judgedCount } from "./expansion.ts";
import type { Generate, Query, Zip } from "./ir.ts";
import { queryLimits as limits } from "./limits.ts";
import { isOrdered, judgeCount } from "./nodes.ts";

const anyText = { min: 0, max: limits.textChars };

export class Tally {
  #nodes = 0;
  #textChars = 0;
  #generates = 0;
  #askedTokens = 0;
  #retrieves = 0;
  #copiedNodes = 0;
  readonly #expansions = new Map<Query, Expansion>();

  node(path: string, depth: number): void {
    if (depth > limits.treeDepth) {
      refuse(path, `is nested more than ${limits.treeDepth} nodes deep`, "nesting_too_deep");
    }
    this.#nodes += 1;
    if (this.#nodes > limits.nodes) refuse(path, `is one node too many; a query may have ${limits.nodes}`);
  }

  /** Counts a text, since an alias in YAML may repeat a long one. */
  text(value: unknown, path: string, range = anyText): string {
    const text = stringOf(value, path, range);
    this.#textChars += text.length;
    if (this.#textChars > limits.textChars) {
      refuse(path, `makes the texts longer than ${limits.textChars} characters together`);
    }
    return text;
  }

  generate(runs: number, maxTokens: number, path: string): void {
    this.#generates += runs;
    if (this.#generates > limits.generates)
      refuse(path, `makes more than ${limits.generates} generations in the query`);
    this.#askedTokens += runs * maxTokens;
    if (this.#askedTokens > limits.askedTokens) {
      refuse(path, `makes the query ask for more than ${limits.askedTokens} tokens (max_tokens times samples)`);
    }
  }

  retrieve(path: string): void {
    this.#retrieves += 1;
    if (this.#retrieves > limits.retrieves)
      refuse(path, `is one search too many; a query may have ${limits.retrieves}`);
  }

  /** Counts what the rules make of a generate: the judges below it, and the copies of its input for its readers. */
  rewritten({ options, input }: Generate, path: string): void {
    if (options.reduce !== undefined) {
      const judged = judgedCount(input, this.#expansions);
      const judges = judgeCount(judged, options.reduce.arity);
      this.generate(judges, options.maxTokens, `${path}.reduce`);
      this.#copy(judges * (isOrdered(input) ? input.children.length : 1), `${path}.reduce`);
    }
    if (options.expose === "both") this.#copy(expansionOf(input, this.#expansions).nodes, `${path}.expose`);
  }

  #copy(nodes: number, path: string): void {
    this.#copiedNodes += nodes;
    if (this.#copiedNodes > limits.copiedNodes) {
      refuse(path, `shows the same nodes again more than ${limits.copiedNodes} times together`);
    }
  }

  /** Checks a zip's size when it is written out, since zips within zips grow exponentially. */
  zip(zip: Zip, path: string): void {
    const { nodes, chars } = expansionOf(zip, this.#expansions);
    if (nodes > limits.nodes) refuse(path, `becomes more than ${limits.nodes} nodes when it is written out`);
    if (chars > limits.textChars)
      refuse(path, `becomes more than ${limits.textChars} characters when it is written out`);
  }
}
