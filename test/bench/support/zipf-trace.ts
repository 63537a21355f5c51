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
 *   copies kept      as published relocation does: found wherever it stands; turned in place when nobody uses it,
 *                    copied when somebody does; the copies stay until the least recently used memory is needed
 *   relocation       the same, but a copy goes when nobody uses it (worker/relocation/relocation.ts)
 *   deferred         once
 *
 * "copies kept" is the Block-Attention that LazyAttention compares itself with (block_attn_vllm/scheduler.py of its
 * code: copies are blocks of vLLM's cache like others, several to a hash). vLLM's span fork is near it (IBM/vllm: no
 * deduplication, the nearest copy is found; its pull request 92 copies what nobody uses too).
 */
export const arms = ["prefix only", "a copy a place", "copies kept", "relocation", "deferred"] as const;
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
  /**
   * all: different documents of all, the r-th most popular with a weight of r^-zipf.
   * window: as the sweep that LazyAttention released draws them: as many neighbours as a prompt has documents, from
   * anywhere in the pool, and of these the prompt's documents, by Zipf's law and with repetition: one document stands
   * at several places of one prompt, and all documents of the pool are as popular.
   */
  readonly drawnFrom: "all" | "window";
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
    const { documentCount, vocabSize, seed } = options;
    const random = randomNumbers(seed);
    const text = (count: number) =>
      Int32Array.from({ length: count }, () => firstTextToken + Math.floor(random() * (vocabSize - firstTextToken)));
    this.documents = Array.from({ length: documentCount }, () => text(options.documentTokens));
    this.prompts = drawDocuments(options).map((drawn) => ({
      documents: drawn
        .map((id) => ({ id, at: random() }))
        .sort((a, b) => a.at - b.at)
        .map(({ id }) => id),
      question: text(options.questionTokens),
    }));
  }

  /** Tokens of a prompt's documents. */
  get documentTokens(): number {
    return this.options.documentsPerPrompt * this.options.documentTokens;
  }

  /**
   * Those of them that stand in the prompt a second time. Who finds a document wherever it stands finds them in any
   * case, in the prompt itself; for who does not they are as any others.
   */
  repeatedTokens(index: number, arm: Arm): number {
    if (arm === "prefix only" || arm === "a copy a place") return 0;
    const { documents } = this.prompts[index];
    return (documents.length - new Set(documents).size) * this.options.documentTokens;
  }

  /** Share of all uses that the so many most popular documents of this trace have. */
  shareOf(documentCount: number): number {
    const uses = this.sortedUses();
    const sum = (counts: readonly number[]) => counts.reduce((total, count) => total + count, 0);
    return sum(uses.slice(0, documentCount)) / sum(uses);
  }

  /** How many documents, the most popular of this trace, make up such a share of all uses. */
  documentsOfShare(share: number): number {
    const counts = Array.from({ length: this.options.documentCount }, (_, i) => i);
    return counts.find((count) => this.shareOf(count) >= share) ?? this.options.documentCount;
  }

  private sortedUses(): number[] {
    const uses = new Map<number, number>();
    for (const { documents } of this.prompts) {
      for (const id of new Set(documents)) uses.set(id, (uses.get(id) ?? 0) + 1);
    }
    return [...uses.values()].sort((a, b) => b - a);
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

/** Documents of each prompt, in no order. */
function drawDocuments(options: TraceOptions): number[][] {
  const { requestCount, documentCount, documentsPerPrompt, zipf, seed, drawnFrom } = options;
  const drawing = { queryCount: requestCount, fragmentsPerQuery: documentsPerPrompt, zipf, seed: seed + 1 };
  if (drawnFrom === "all") return drawQueries({ ...drawing, fragmentCount: documentCount });
  const random = randomNumbers(seed + 2);
  // One draw at a time is one with repetition.
  const single = { queryCount: requestCount * documentsPerPrompt, fragmentsPerQuery: 1 };
  const ranks = drawQueries({ ...drawing, ...single, fragmentCount: documentsPerPrompt }).flat();
  return Array.from({ length: requestCount }, (_, index) => {
    const first = Math.floor(random() * documentCount);
    const shift = Math.floor(random() * documentsPerPrompt);
    const drawn = ranks.slice(index * documentsPerPrompt, (index + 1) * documentsPerPrompt);
    return drawn.map((rank) => (first + ((rank + shift) % documentsPerPrompt)) % documentCount);
  });
}
