/** Prompts over documents of a skewed popularity, in random order, as plans of an engine. */
import { foldSpan, rootKey, runBlockKeys } from "../../../worker/contract/block-key.ts";
import { greedySampling } from "../../../worker/contract/greedy-sampling.ts";
import type { PlanRun, SegmentRef, SubmitMessage } from "../../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../../worker/contract/units.ts";
import { drawQueries, randomNumbers } from "./reuse-order.ts";

/**
 * How documents are kept:
 *
 *   prefix only      as part of the prompt that they were computed in
 *   a copy a place   for each place that they stood at, as a cache of absolute positions has them
 *   relocation       where they were used last, moved or copied to where they are wanted (worker/engine/relocate.ts)
 *   deferred         once
 */
export const arms = ["prefix only", "a copy a place", "relocation", "deferred"] as const;
export type Arm = (typeof arms)[number];

export interface TraceOptions {
  readonly requestCount: number;
  readonly documentCount: number;
  /** Each may stand at so many places: all documents have the same length. */
  readonly documentsPerPrompt: number;
  readonly documentTokens: number;
  readonly questionTokens: number;
  readonly answerTokens: number;
  readonly zipf: number;
  readonly vocabSize: number;
  readonly blockTokens: number;
  readonly seed: number;
}

interface Span {
  readonly tokenIds: Int32Array;
  readonly blockKeys: readonly BlockKey[];
  readonly rootKey: BlockKey;
}

const salt = "emlwZg==" as CacheSalt;
const mainRoot = rootKey("zipf", salt, "main");
/** The demo model's special tokens come first. */
const firstTextToken = 3;

export class Trace {
  readonly options: TraceOptions;
  private readonly documents: readonly Int32Array[];
  private readonly prompts: readonly { readonly documents: readonly number[]; readonly question: Int32Array }[];
  private readonly spans = new Map<string, Span>();

  constructor(options: TraceOptions) {
    this.options = options;
    const { requestCount, documentCount, documentsPerPrompt, zipf, vocabSize, seed } = options;
    const random = randomNumbers(seed);
    const text = (count: number) =>
      Int32Array.from({ length: count }, () => firstTextToken + Math.floor(random() * (vocabSize - firstTextToken)));
    this.documents = Array.from({ length: documentCount }, () => text(options.documentTokens));
    const queries = drawQueries({
      queryCount: requestCount,
      fragmentsPerQuery: documentsPerPrompt,
      fragmentCount: documentCount,
      zipf,
      seed: seed + 1,
    });
    this.prompts = queries.map((drawn) => ({
      documents: drawn
        .map((id) => ({ id, at: random() }))
        .sort((a, b) => a.at - b.at)
        .map(({ id }) => id),
      question: text(options.questionTokens),
    }));
  }

  /** Tokens of a prompt that others may have computed. */
  get sharedTokens(): number {
    return this.options.documentsPerPrompt * this.options.documentTokens;
  }

  /** How many documents, the most popular of this trace, make up such a share of all uses. */
  documentsOfShare(share: number): number {
    const uses = new Map<number, number>();
    for (const { documents } of this.prompts) for (const id of documents) uses.set(id, (uses.get(id) ?? 0) + 1);
    const wanted = share * this.prompts.length * this.options.documentsPerPrompt;
    let [sum, count] = [0, 0];
    for (const use of [...uses.values()].sort((a, b) => b - a)) {
      if (sum >= wanted) break;
      sum += use;
      count += 1;
    }
    return count;
  }

  message(index: number, arm: Arm): SubmitMessage {
    const maxTokens = this.options.answerTokens;
    const params = { maxTokens, minTokens: 0, ignoreEos: true, stopTokenIds: [], sampling: greedySampling };
    const runs = arm === "prefix only" ? this.plainRuns(index) : this.spanRuns(index, arm);
    return { type: "submit", requestId: String(index), plan: { runs }, params, reuse: true };
  }

  private plainRuns(index: number): PlanRun[] {
    const { documents, question } = this.prompts[index];
    const tokenIds = Int32Array.from([...documents.flatMap((id) => [...this.documents[id]]), ...question]);
    const blockKeys = runBlockKeys(mainRoot, tokenIds, this.options.blockTokens, false);
    return [{ kind: "main", tokenIds, position: 0, sees: [], blockKeys, rootKey: mainRoot }];
  }

  private spanRuns(index: number, arm: Arm): PlanRun[] {
    const { documents, question } = this.prompts[index];
    const runs: PlanRun[] = [];
    const sees: SegmentRef[] = [];
    let [key, position] = [mainRoot, 0];
    for (const id of documents) {
      const span = this.span(id, arm === "a copy a place" ? `place ${position}` : "any place");
      const tokenCount = span.tokenIds.length;
      runs.push({ kind: "span", position: 0, sees: [], ...span });
      sees.push({ run: runs.length - 1, firstToken: 0, tokenCount, offset: position });
      key = foldSpan(key, span.blockKeys[span.blockKeys.length - 1]);
      position += tokenCount;
    }
    const blockKeys = runBlockKeys(key, question, this.options.blockTokens, false);
    runs.push({ kind: "main", tokenIds: question, position, sees, blockKeys, rootKey: key });
    return runs;
  }

  /** The document as it is kept for `place`. */
  private span(id: number, place: string): Span {
    const name = `${id}, ${place}`;
    const known = this.spans.get(name);
    if (known !== undefined) return known;
    const root = rootKey(`zipf, ${place}`, salt, "span");
    const tokenIds = this.documents[id];
    const made = { tokenIds, blockKeys: runBlockKeys(root, tokenIds, this.options.blockTokens, true), rootKey: root };
    this.spans.set(name, made);
    return made;
  }
}
