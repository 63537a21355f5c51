/** One request in the engine: its runs, what it generated, and what is reported of it. */

import type { BackendShape } from "../backend/backend.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import { sourcesOf } from "../cache/sources.ts";
import type {
  BlendReport,
  FinishReason,
  RequestUsage,
  SpanReport,
  SubmitMessage,
  WorkerMessage,
} from "../contract/messages.ts";
import { type KvOwner, nobody } from "../contract/owners.ts";
import type { SparseReport } from "../contract/sparse.ts";
import { fartherTier } from "../contract/tiers.ts";
import type { TokenConstraint } from "../sample/constraint.ts";
import type { WorkBudget } from "../sample/mask-walk.ts";
import { TokenHistory } from "../sample/penalties.ts";
import type { SampledToken, SampleRequest } from "../sample/sampler.ts";
import { SparseState } from "../sparse/state.ts";
import { RequestTimes } from "./reports.ts";
import { Run } from "./run.ts";

export class Request {
  readonly requestId: string;
  readonly runs: readonly Run[];
  /** The run that generated tokens are appended to; undefined when the request only prepares KV. */
  readonly openRun: Run | undefined;
  /** The owner who asks. */
  readonly owner: KvOwner;
  readonly params: SubmitMessage["params"];
  readonly times: RequestTimes;
  /** Undefined: all of its rows read all they see. */
  readonly sparse: SparseState | undefined;
  /** Blocks promised at admission that the runs have not taken yet. */
  reservedBlocks = 0;
  /** The prompt is computed and sampling has begun (again, after a preemption). */
  decoding = false;
  /** Tokens sampled, with the stop token, which is not emitted but is billed. */
  generatedTokens = 0;
  /**
   * Tokens that steps in flight draw. The last so many tokens of the open run are names, below 0, of tokens that only
   * the device has yet. There is one at most between steps, and two while a step is waited for.
   */
  pendingTokens = 0;
  /** Why generation ended, while the tokens that close the chain are computed. */
  closingReason: FinishReason | undefined;

  readonly #closeTokenIds: Int32Array | undefined;
  readonly #tellFound: boolean;
  readonly #history: TokenHistory | undefined;
  readonly #constraint: TokenConstraint | undefined;
  readonly #stopTokenIds: ReadonlySet<number>;
  readonly #stopTokenList: readonly number[];
  readonly #contextTokens: number;

  /**
   * @param places of the plan's runs; default: all 0
   * @param constrain makes the constraint of a completion that may stop with these tokens
   * @throws what `constrain` throws
   */
  constructor(
    message: SubmitMessage,
    shape: BackendShape,
    eosTokenIds: readonly number[],
    nowMs: number,
    places?: Int32Array,
    constrain?: (stopTokenIds: readonly number[]) => TokenConstraint | undefined,
  ) {
    const { plan, params, reuse, closeTokenIds, tellFound = false } = message;
    this.requestId = message.requestId;
    // Requests share what is compiled from a grammar, so the message's own copy of it is not kept.
    this.params = { ...params, grammar: undefined };
    this.#closeTokenIds = closeTokenIds;
    this.#tellFound = tellFound;
    this.times = new RequestTimes(nowMs);
    this.#contextTokens = shape.contextTokens;
    const lastIndex = plan.runs.length - 1;
    const sources = sourcesOf(plan.runs);
    this.owner = ownerOfRun(message, lastIndex);
    this.runs = plan.runs.map((run, index) => {
      const open = index === lastIndex && params.maxTokens > 0;
      const owner = ownerOfRun(message, index);
      // The retention that one tenant asks for does not hold blocks of another tenant.
      const retention = owner.number === this.owner.number ? message.retention : 0;
      const detail = { place: places?.[index], sources: sources[index], owner, retention };
      return new Run(run, open, reuse, shape.blockTokens, detail);
    });
    this.openRun = params.maxTokens > 0 ? this.runs[lastIndex] : undefined;
    this.sparse = message.sparse && new SparseState(message.sparse, plan.runs, params.maxTokens);
    const eos = params.ignoreEos ? [] : eosTokenIds;
    this.#stopTokenList = [...new Set([...eos, ...params.stopTokenIds])];
    this.#stopTokenIds = new Set(this.#stopTokenList);
    this.#constraint = constrain?.(this.#stopTokenList);
    this.#history = TokenHistory.forParams(params.sampling, () => plan.runs.map((run) => run.tokenIds));
  }

  /** Blocks of all runs' tokens so far: what the request takes of the pool when nothing is shared. */
  get blockCount(): number {
    return this.runs.reduce((sum, run) => sum + run.blockCount, 0);
  }

  /** Tokens whose KV is neither found nor computed yet. */
  get missingTokens(): number {
    return this.runs.reduce((sum, run) => sum + run.missingTokens, 0);
  }

  get promptTokens(): number {
    return this.runs.reduce((sum, run) => sum + run.promptTokens, 0);
  }

  get allRunsComplete(): boolean {
    return this.runs.every((run) => run.complete);
  }

  /** Reason of an end that comes when all runs are complete; undefined while tokens are to be sampled. */
  get reasonWhenComplete(): FinishReason | undefined {
    return this.openRun === undefined ? "prepared" : this.closingReason;
  }

  /** How the token after all generated and pending ones is drawn. */
  get sampleRequest(): SampleRequest {
    const index = this.generatedTokens + this.pendingTokens;
    const banned = index < this.params.minTokens ? this.#stopTokenList : [];
    const { params } = this;
    const history = this.#history;
    const constraint = this.#constraint;
    return { params: params.sampling, history, constraint, bannedTokenIds: banned, index };
  }

  /** A draw depends on all tokens before it. */
  get drawsByHistory(): boolean {
    return this.#history !== undefined || this.#constraint !== undefined;
  }

  /** The next token cannot be drawn yet, because it is not known which tokens the grammar allows. */
  get awaitsMask(): boolean {
    return this.#constraint !== undefined && !this.#constraint.isReady && this.closingReason === undefined;
  }

  /** @throws RangeError when no token is allowed, or GrammarTooAmbiguous when finding that out takes too much work */
  prepareMask(budget: WorkBudget): void {
    this.#constraint?.prepare(budget);
  }

  /** Gives back what drawing tokens needs, when no token is drawn any more. */
  release(): void {
    this.#constraint?.release();
  }

  /** Generation ends with the pending token, whichever it is. */
  get drawsLastToken(): boolean {
    return (
      this.pendingTokens > 0 && this.#isLast(this.generatedTokens + this.pendingTokens, this.openRun?.tokenCount ?? 0)
    );
  }

  /** A step that draws the next token has begun. @param name stands for the token in the step after it, below 0 */
  expectToken(name: number): void {
    if (this.openRun === undefined) throw new Error(`request ${this.requestId} samples without an open run`);
    this.openRun.append(name);
    this.pendingTokens += 1;
    this.decoding = true;
  }

  /**
   * Takes the first pending token. Answers whether to emit it, and the reason to finish, if there is one: with "stop"
   * nothing is pending any more.
   */
  accept(tokenId: number, nowMs: number): { emit: boolean; reason: FinishReason | undefined } {
    const run = this.openRun;
    if (run === undefined || this.pendingTokens === 0) throw new Error(`request ${this.requestId} awaits no token`);
    this.times.markToken(nowMs);
    this.generatedTokens += 1;
    const place = run.tokenCount - this.pendingTokens;
    if (this.#stopTokenIds.has(tokenId)) {
      run.cutTo(place);
      this.pendingTokens = 0;
      return { emit: false, reason: "stop" };
    }
    run.tokenIds[place] = tokenId;
    this.pendingTokens -= 1;
    this.#history?.add(tokenId);
    this.#constraint?.accept(tokenId);
    return { emit: true, reason: this.#isLast(this.generatedTokens, place + 1) ? "length" : undefined };
  }

  /** @param runTokens tokens of the open run, the last of them the newest */
  #isLast(generatedTokens: number, runTokens: number): boolean {
    const closingTokens = this.#closeTokenIds?.length ?? 0;
    const endPosition = (this.openRun?.plan.position ?? 0) + runTokens + closingTokens;
    return generatedTokens >= this.params.maxTokens || endPosition >= this.#contextTokens;
  }

  /** Generation is over. Closes the chain if that was asked for. Answers whether the request ends with it. */
  endsAt(reason: FinishReason, cache: PrefixCache): boolean {
    if (this.#closeTokenIds === undefined || this.openRun === undefined) return true;
    this.closingReason = reason;
    if (this.sparse !== undefined) this.sparse.rectifiedTokens += this.openRun.settledTokens - this.openRun.exactTokens;
    this.openRun.close(this.#closeTokenIds, cache);
    return false;
  }

  tokens({ tokenId, logprob }: SampledToken): WorkerMessage {
    const message = { type: "tokens", requestId: this.requestId, tokenIds: [tokenId] } as const;
    return logprob === undefined ? message : { ...message, logprobs: [logprob] };
  }

  finished(reason: FinishReason, nowMs: number, sparse?: SparseReport): WorkerMessage {
    const { requestId, runs, times, generatedTokens } = this;
    const blend = blendReportOf(runs);
    return {
      type: "finished",
      requestId,
      reason,
      usage: usageOf(runs, generatedTokens),
      timings: times.timings(nowMs),
      spans: spanReports(runs),
      ...(this.#tellFound ? { foundTokens: runs.map(({ usage }) => usage.cachedTokens) } : {}),
      ...(blend === undefined ? {} : { blend }),
      ...(sparse === undefined ? {} : { sparse }),
    };
  }
}

function ownerOfRun({ owners }: SubmitMessage, run: number): KvOwner {
  return owners === undefined ? nobody : owners.owners[owners.ofRun[run]];
}

/** @param completionTokens tokens sampled, the stop token that is not emitted too */
function usageOf(runs: readonly Run[], completionTokens: number): RequestUsage {
  let [promptTokens, cachedTokens, cacheWriteTokens] = [0, 0, 0];
  for (const { promptTokens: own, usage } of runs) {
    promptTokens += own;
    cachedTokens += usage.cachedTokens;
    cacheWriteTokens += usage.cacheWriteTokens;
  }
  return { promptTokens, completionTokens, cachedTokens, cacheWriteTokens };
}

/** Runs of one span are one report, at the place of the first. */
function spanReports(runs: readonly Run[]): SpanReport[] {
  const reports = new Map<string, SpanReport>();
  for (const [index, { plan, promptTokens, usage }] of runs.entries()) {
    if (plan.kind !== "span") continue;
    const id = plan.spanId ?? String(index);
    const before = reports.get(id) ?? { id, tokens: 0, source: "device", cachedTokens: 0, cacheWriteTokens: 0 };
    const isFound = usage.cachedTokens === promptTokens && before.source !== "computed";
    reports.set(id, {
      id,
      tokens: before.tokens + promptTokens,
      source: isFound ? fartherTier(before.source, usage.tier) : "computed",
      cachedTokens: before.cachedTokens + usage.cachedTokens,
      cacheWriteTokens: before.cacheWriteTokens + usage.cacheWriteTokens,
    });
  }
  return [...reports.values()];
}

/** undefined: nothing of the request is blended. */
function blendReportOf(runs: readonly Run[]): BlendReport | undefined {
  const blended = runs.filter(({ plan }) => plan.blend !== undefined);
  if (blended.length === 0) return undefined;
  let [copiedTokens, recomputedTokens] = [0, 0];
  for (const { blendReport } of blended) {
    copiedTokens += blendReport?.copiedTokens ?? 0;
    recomputedTokens += blendReport?.recomputedTokens ?? 0;
  }
  return { copiedTokens, recomputedTokens };
}
