/** Plans for tests: keyed as the gateway keys them, and the answer each must get, worked out without an engine. */
import { foldSpan, nextBlockKey, rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { BlendCopy, GenerateParams, PlanRun, SegmentRef, SubmitMessage } from "../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";

export const blockTokens = 4;
const modelDigest = "fake";
const salt = "c2FsdA==" as CacheSalt;

export const defaultParams: GenerateParams = {
  maxTokens: 4,
  minTokens: 0,
  ignoreEos: false,
  stopTokenIds: [],
  sampling: greedySampling,
};

/** Tokens `from`, `from + 1`, …: easy to tell apart. */
export function countUp(from: number, count: number): Int32Array {
  return Int32Array.from({ length: count }, (_, i) => (from + i) % 97);
}

export interface PlanParts {
  /** Main chain before the spans; empty: none. */
  readonly system?: Int32Array;
  readonly spans?: readonly Int32Array[];
  /** Main chain after the spans; with a completion wanted, the open run. */
  readonly question?: Int32Array;
  readonly salt?: CacheSalt;
  /** Default: the tiny world's. */
  readonly blockTokens?: number;
}

/** The shape every prompt over fragments has: system, spans (each a chain of its own), question. */
export function makeRuns(parts: PlanParts, open: boolean): PlanRun[] {
  const runs: PlanRun[] = [];
  const chainSalt = parts.salt ?? salt;
  const perBlock = parts.blockTokens ?? blockTokens;
  let mainKey = rootKey(modelDigest, chainSalt, "main");
  let position = 0;
  const seen: SegmentRef[] = [];
  const addMain = (tokenIds: Int32Array, last: boolean): void => {
    if (tokenIds.length === 0) return;
    const keys = runBlockKeys(mainKey, tokenIds, perBlock, !(last && open));
    runs.push({ kind: "main", tokenIds, position, sees: [...seen], blockKeys: keys, rootKey: mainKey });
    seen.push({ run: runs.length - 1, firstToken: 0, tokenCount: tokenIds.length, offset: 0 });
    mainKey = keys.at(-1) ?? mainKey;
    position += tokenIds.length;
  };
  addMain(parts.system ?? new Int32Array(0), false);
  (parts.spans ?? []).forEach((tokenIds, index) => {
    const root = rootKey(modelDigest, chainSalt, "span");
    const keys = runBlockKeys(root, tokenIds, perBlock, true);
    const spanId = `span-${index}`;
    runs.push({ kind: "span", tokenIds, position: 0, sees: [], blockKeys: keys, rootKey: root, spanId });
    seen.push({ run: runs.length - 1, firstToken: 0, tokenCount: tokenIds.length, offset: position });
    mainKey = foldSpan(mainKey, keys.at(-1) as BlockKey);
    position += tokenIds.length;
  });
  addMain(parts.question ?? new Int32Array(0), true);
  return runs;
}

export interface SubmitOptions {
  readonly params?: Partial<Omit<GenerateParams, "sampling">>;
  readonly sampling?: Partial<GenerateParams["sampling"]>;
  readonly reuse?: boolean;
}

export function submitRuns(requestId: string, runs: readonly PlanRun[], options: SubmitOptions = {}): SubmitMessage {
  const params = {
    ...defaultParams,
    ...options.params,
    sampling: { ...defaultParams.sampling, ...options.sampling },
  };
  return { type: "submit", requestId, plan: { runs }, params, reuse: options.reuse ?? true };
}

export function submitPlan(requestId: string, parts: PlanParts, options: SubmitOptions = {}): SubmitMessage {
  const open = (options.params?.maxTokens ?? defaultParams.maxTokens) > 0;
  return submitRuns(requestId, makeRuns(parts, open), options);
}

/** Keys of a chain's full blocks as an open run keeps them. */
export function chainKeys(root: BlockKey, tokenIds: Int32Array): BlockKey[] {
  const keys: BlockKey[] = [];
  for (let at = 0; at + blockTokens <= tokenIds.length; at += blockTokens) {
    keys.push(nextBlockKey(keys.at(-1) ?? root, tokenIds.subarray(at, at + blockTokens)));
  }
  return keys;
}

/** Texts of a blended chain in order: what is copied from a span of its own, and what is not (`plain`). */
export type BlendPart = { readonly copied: Int32Array } | { readonly plain: Int32Array };

export interface BlendOptions {
  readonly recomputeRatio: number;
  readonly question?: Int32Array;
  /** Tells chains of the same texts apart. */
  readonly parentKey?: BlockKey;
}

/** A span for each copied text, then the whole as one blended run, then the question. */
export function blendRuns(parts: readonly BlendPart[], options: BlendOptions): PlanRun[] {
  const { recomputeRatio, question = new Int32Array(0), parentKey } = options;
  const runs: PlanRun[] = [];
  const copies: BlendCopy[] = [];
  const tokenIds: number[] = [];
  for (const part of parts) {
    const text = "copied" in part ? part.copied : part.plain;
    if ("copied" in part) {
      const root = rootKey(modelDigest, salt, "span");
      const blockKeys = runBlockKeys(root, text, blockTokens, true);
      copies.push({ run: runs.length, firstToken: 0, tokenCount: text.length, at: tokenIds.length });
      runs.push({ kind: "span", tokenIds: text, position: 0, sees: [], blockKeys, rootKey: root });
    }
    tokenIds.push(...text);
  }
  const root = rootKey(modelDigest, salt, `blend ${recomputeRatio}`, parentKey);
  const whole = Int32Array.from(tokenIds);
  const blockKeys = runBlockKeys(root, whole, blockTokens, true);
  const blend = { recomputeRatio, copies };
  runs.push({ kind: "main", tokenIds: whole, position: 0, sees: [], blockKeys, rootKey: root, blend });
  if (question.length === 0) return runs;
  const questionRoot = blockKeys.at(-1) ?? root;
  runs.push({
    kind: "main",
    tokenIds: question,
    position: whole.length,
    sees: [{ run: runs.length - 1, firstToken: 0, tokenCount: whole.length, offset: 0 }],
    blockKeys: runBlockKeys(questionRoot, question, blockTokens, false),
    rootKey: questionRoot,
  });
  return runs;
}
