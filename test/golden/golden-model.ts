/** Runs golden cases through the real engine and backend, and compares. */
import { z } from "zod";
import type { Backend } from "../../worker/backend/backend.ts";
import type { Batch, TokenCopies } from "../../worker/contract/batch.ts";
import { foldSpan, rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { GenerateParams, PlanRun, TokenPlan, WorkerMessage } from "../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import type { EngineOptions } from "../../worker/engine/limits.ts";
import { Engine } from "../../worker/engine/loop.ts";

const ids = z.array(z.number().int().min(0)).min(1);
const expected = {
  last_logits: z.array(z.number()),
  greedy: z.array(z.number().int()),
  margins: z.array(z.number()).optional(),
  bf16_errors: z.array(z.number()).min(1).optional(),
};
export const goldenSchema = z.object({
  cases: z.array(
    z.discriminatedUnion("kind", [
      z.object({ kind: z.literal("causal"), ids, ...expected }),
      z.object({ kind: z.literal("span"), system: ids, fragments: z.array(ids), user: ids, ...expected }),
    ]),
  ),
});
export type GoldenCase = z.infer<typeof goldenSchema>["cases"][number];

export type SpanPrompt = Pick<Extract<GoldenCase, { kind: "span" }>, "kind" | "system" | "fragments" | "user">;
export type GoldenPrompt = Pick<Extract<GoldenCase, { kind: "causal" }>, "kind" | "ids"> | SpanPrompt;

export interface Answer {
  /** undefined: none came. */
  readonly logits: Float32Array | undefined;
  readonly tokens: readonly number[];
  readonly cachedTokens: number;
}

export interface CaseResult {
  readonly ok: boolean;
  readonly maxAbsolute: number;
  /** Largest |difference| / (tolerance + tolerance |reference|); 1 or less passes. */
  readonly maxRelativeExcess: number;
  readonly greedyMatches: number;
  readonly greedyLength: number;
  /**
   * Is this within twice of what bfloat16 is off by, with the greedy tokens up to the first whose lead is no greater?
   * undefined: the reference does not say.
   */
  readonly withinBfloat16: boolean | undefined;
  /** Prompt tokens found in the cache: a span case in its second order finds every fragment. */
  readonly cachedTokens: number;
}

const tolerance = 1e-3;
const salt = "golden" as CacheSalt;

/** Keeps the first logits of a request: those of the last prompt token. */
class RecordingBackend implements Backend {
  readonly name: string;
  readonly shape: Backend["shape"];
  readonly #inner: Backend;
  firstLogits: Float32Array | undefined;

  constructor(inner: Backend) {
    this.#inner = inner;
    this.name = inner.name;
    this.shape = inner.shape;
  }

  async forward(batch: Batch): Promise<Float32Array> {
    const logits = await this.#inner.forward(batch);
    if (logits.length > 0) this.firstLogits ??= logits.slice();
    return logits;
  }

  copyTokens(copies: TokenCopies): Promise<void> {
    return this.#inner.copyTokens(copies);
  }

  deviations(batch: Batch): Promise<Float32Array> {
    return this.#inner.deviations(batch);
  }

  dispose(): Promise<void> {
    return this.#inner.dispose();
  }
}

export class GoldenModel {
  readonly #backend: RecordingBackend;
  readonly #engine: Engine;
  readonly #digest: string;
  readonly #messages: WorkerMessage[] = [];
  #requestCount = 0;

  /**
   * @param digest the model's, for block keys
   * @param positions where K stands in the pool
   */
  constructor(backend: Backend, digest: string, positions?: EngineOptions["positions"]) {
    this.#backend = new RecordingBackend(backend);
    this.#digest = digest;
    const emit = (message: WorkerMessage) => void this.#messages.push(message);
    const clock = () => performance.now();
    this.#engine = new Engine({
      backend: this.#backend,
      eosTokenIds: [],
      clock,
      emit,
      ...(positions && { positions }),
    });
  }

  async run(goldenCase: GoldenCase): Promise<CaseResult> {
    const { logits, tokens, cachedTokens } = await this.answer(goldenCase, goldenCase.greedy.length);
    return compare(goldenCase, logits, tokens, cachedTokens);
  }

  /** How many requests had to give their blocks back so far. */
  get preemptions(): number {
    return this.#engine.stats().preemptions;
  }

  /**
   * What follows prompts that are in progress together.
   * @param reuse false: nothing that was computed before is used
   */
  answers(prompts: readonly GoldenPrompt[], tokenCount: number, reuse = true): Promise<number[][]> {
    const plans = prompts.map((prompt) =>
      prompt.kind === "causal" ? this.#plan([], [], prompt.ids) : this.#spanPlan(prompt),
    );
    return this.answersTo(plans, tokenCount, reuse);
  }

  /** The same for plans. */
  async answersTo(plans: readonly TokenPlan[], tokenCount: number, reuse = true): Promise<number[][]> {
    this.#messages.length = 0;
    const ids = plans.map((plan) => {
      const requestId = `golden-${this.#requestCount++}`;
      this.#engine.submit({ type: "submit", requestId, plan, params: greedy(tokenCount), reuse });
      return requestId;
    });
    while (await this.#engine.step());
    const failure = this.#messages.find((message) => message.type === "failed");
    if (failure) throw new Error(failure.message);
    const tokens = Map.groupBy(
      this.#messages.filter((message) => message.type === "tokens"),
      ({ requestId }) => requestId,
    );
    return ids.map((id) => tokens.get(id)?.flatMap(({ tokenIds }) => tokenIds) ?? []);
  }

  /** The logits of the prompt's last token, and the tokens that follow. */
  async answer(goldenCase: GoldenPrompt, tokenCount: number): Promise<Answer> {
    this.#backend.firstLogits = undefined;
    const [tokens] = await this.answers([goldenCase], tokenCount);
    const finished = this.#messages.find((message) => message.type === "finished");
    return { logits: this.#backend.firstLogits, tokens, cachedTokens: finished?.usage.cachedTokens ?? 0 };
  }

  async dispose(): Promise<void> {
    await this.#backend.dispose();
  }

  #spanPlan(goldenCase: SpanPrompt): TokenPlan {
    return this.#plan(goldenCase.system, goldenCase.fragments, goldenCase.user);
  }

  /** system, then each fragment as a span, then the open run; positions 0..n-1 over the whole. */
  #plan(system: readonly number[], fragments: readonly number[][], user: readonly number[]): TokenPlan {
    const runs: PlanRun[] = [];
    const sees: PlanRun["sees"][number][] = [];
    const { blockTokens } = this.#backend.shape;
    let position = 0;
    let mainKey = rootKey(this.#digest, salt, "main");
    const add = (kind: PlanRun["kind"], tokens: readonly number[], root: BlockKey, closed: boolean) => {
      const tokenIds = Int32Array.from(tokens);
      const blockKeys = runBlockKeys(root, tokenIds, blockTokens, closed);
      const own = kind === "main" ? { position, sees: [...sees] } : { position: 0, sees: [] };
      runs.push({ kind, tokenIds, blockKeys, rootKey: root, ...own });
      const offset = kind === "main" ? 0 : position;
      sees.push({ run: runs.length - 1, firstToken: 0, tokenCount: tokens.length, offset });
      position += tokens.length;
      return blockKeys.at(-1) ?? root;
    };
    if (system.length > 0) mainKey = add("main", system, mainKey, true);
    for (const fragment of fragments) {
      mainKey = foldSpan(mainKey, add("span", fragment, rootKey(this.#digest, salt, "span"), true));
    }
    add("main", user, mainKey, false);
    return { runs };
  }
}

function greedy(maxTokens: number): GenerateParams {
  return { maxTokens, minTokens: 0, ignoreEos: true, stopTokenIds: [], sampling: greedySampling };
}

function compare(
  goldenCase: GoldenCase,
  logits: Float32Array | undefined,
  tokens: readonly number[],
  cachedTokens: number,
): CaseResult {
  let maxAbsolute = logits?.length === goldenCase.last_logits.length ? 0 : Number.POSITIVE_INFINITY;
  let maxRelativeExcess = maxAbsolute;
  goldenCase.last_logits.forEach((reference, i) => {
    const difference = Math.abs((logits?.[i] ?? Number.NaN) - reference);
    maxAbsolute = Math.max(maxAbsolute, difference);
    maxRelativeExcess = Math.max(maxRelativeExcess, difference / (tolerance * (1 + Math.abs(reference))));
  });
  const greedyMatches = goldenCase.greedy.filter((token, i) => tokens[i] === token).length;
  const greedyLength = goldenCase.greedy.length;
  const ok = maxRelativeExcess <= 1 && greedyMatches === greedyLength && tokens.length === greedyLength;
  const withinBfloat16 = isWithinBfloat16(goldenCase, maxAbsolute, tokens);
  return { ok, maxAbsolute, maxRelativeExcess, greedyMatches, greedyLength, withinBfloat16, cachedTokens };
}

function isWithinBfloat16(
  { greedy: expectedTokens, margins, bf16_errors: errors }: GoldenCase,
  maxAbsolute: number,
  tokens: readonly number[],
): boolean | undefined {
  if (margins === undefined || errors === undefined) return undefined;
  const bound = 2 * Math.max(...errors);
  const undecided = margins.findIndex((margin) => margin <= bound);
  const decided = expectedTokens.slice(0, undecided < 0 ? expectedTokens.length : undecided);
  return maxAbsolute <= bound && decided.every((token, i) => tokens[i] === token);
}
