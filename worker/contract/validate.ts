/**
 * Whether a submitted request is one this engine can take. The gateway checks too; a number that crossed a
 * process border is checked again before work begins. Answers the first fault as a sentence.
 */

import { type ByteGrammar, endOfRule, firstRuleSymbol } from "./grammar.ts";
import { limits } from "./limits.ts";
import type {
  BlendPlan,
  GenerateParams,
  PlanRun,
  SamplingParams,
  SegmentRef,
  SubmitMessage,
  ThinkingLimit,
} from "./messages.ts";
import type { ModelCard } from "./model-card.ts";
import { retentionTimesMs } from "./owners.ts";
import type { ChoiceMode, SparseParams } from "./sparse.ts";
import { blockCountForTokens, blockKeyChars, fullBlockCount } from "./units.ts";

const maxLogitBiases = 1_024;

/** What of a model bounds a request. */
type Shape = Pick<ModelCard, "vocabSize" | "contextTokens" | "blockTokens" | "blends"> & {
  readonly sparse?: { readonly modes: readonly ChoiceMode[] };
};

class Fault extends Error {}

function check(holds: boolean, sentence: () => string): void {
  if (!holds) throw new Fault(sentence());
}

function integerIn(value: unknown, min: number, max: number, name: string): void {
  const holds = typeof value === "number" && Number.isSafeInteger(value) && value >= min && value <= max;
  check(holds, () => `${name} is ${String(value)}, not an integer from ${min} to ${max}`);
}

/** A prompt has a hundred thousand tokens, so what is right costs one comparison and no call. */
function tokensIn(tokenIds: Int32Array, vocabSize: number, name: string): void {
  for (let index = 0; index < tokenIds.length; index++) {
    const tokenId = tokenIds[index];
    if (tokenId < 0 || tokenId >= vocabSize) integerIn(tokenId, 0, vocabSize - 1, name);
  }
}

function numberIn(value: unknown, min: number, max: number, name: string): void {
  const holds = typeof value === "number" && value >= min && value <= max;
  check(holds, () => `${name} is ${String(value)}, not a number from ${min} to ${max}`);
}

function listOf(value: unknown, maxLength: number, name: string): void {
  check(Array.isArray(value), () => `${name} is not a list`);
  const { length } = value as unknown[];
  check(length <= maxLength, () => `${name} has ${length} entries, more than ${maxLength}`);
}

/** @returns what is wrong, or undefined when the message can be served by a backend of this shape. */
export function planFault(message: SubmitMessage, shape: Shape): string | undefined {
  try {
    checkRequestId(message.requestId);
    check(typeof message.reuse === "boolean", () => "reuse is not true or false");
    checkParams(message.params, shape.vocabSize);
    checkRuns(message, shape);
    checkClosing(message, shape);
    checkOwners(message);
    if (message.sparse !== undefined) checkSparse(message, message.sparse, shape);
    return undefined;
  } catch (error) {
    if (error instanceof Fault) return error.message;
    return `the message is malformed: ${error instanceof Error ? error.message : String(error)}`;
  }
}

function checkRequestId(requestId: unknown): void {
  const holds = typeof requestId === "string" && requestId.length > 0 && requestId.length <= limits.maxRequestIdChars;
  check(holds, () => `requestId is not a string of 1 to ${limits.maxRequestIdChars} characters`);
}

function checkRuns({ plan, params, closeTokenIds }: SubmitMessage, shape: Shape): void {
  const { runs } = plan;
  listOf(runs, limits.maxRuns, "plan.runs");
  check(runs.length > 0, () => "plan.runs is empty");
  let tokenCount = params.maxTokens + (closeTokenIds?.length ?? 0);
  runs.forEach((run, index) => {
    const open = params.maxTokens > 0 && index === runs.length - 1;
    checkRun(run, `plan.runs[${index}]`, open, shape);
    const blendName = `plan.runs[${index}].blend`;
    check(run.blend === undefined || shape.blends !== false, () => `${blendName}: KV in mx8 is not blended`);
    if (run.blend !== undefined) checkBlend(run, index, open, runs, blendName);
    for (const [at, segment] of run.sees.entries()) {
      checkSegment(segment, index, runs, shape.contextTokens, `plan.runs[${index}].sees[${at}]`);
    }
    tokenCount += run.tokenIds.length;
  });
  const { maxRequestTokens } = limits;
  check(tokenCount <= maxRequestTokens, () => `prompt and maxTokens make ${tokenCount}, more than ${maxRequestTokens}`);
}

/** Copies lie in earlier runs, which are all closed, and have the tokens that they stand for. */
function checkBlend(run: PlanRun, index: number, open: boolean, runs: readonly PlanRun[], name: string): void {
  check(!open, () => `${name} is of an open run`);
  const { recomputeRatio, copies } = run.blend as BlendPlan;
  numberIn(recomputeRatio, 0, 1, `${name}.recomputeRatio`);
  listOf(copies, limits.maxSegmentsPerRun, `${name}.copies`);
  let end = 0;
  for (const [i, copy] of copies.entries()) {
    const field = `${name}.copies[${i}]`;
    integerIn(copy.run, 0, index - 1, `${field}.run`);
    const source = runs[copy.run].tokenIds;
    integerIn(copy.firstToken, 0, source.length - 1, `${field}.firstToken`);
    integerIn(copy.tokenCount, 1, source.length - copy.firstToken, `${field}.tokenCount`);
    integerIn(copy.at, end, run.tokenIds.length - copy.tokenCount, `${field}.at`);
    end = copy.at + copy.tokenCount;
    for (let token = 0; token < copy.tokenCount; token++) {
      const same = source[copy.firstToken + token] === run.tokenIds[copy.at + token];
      check(same, () => `${field} copies another token than stands at ${copy.at + token}`);
    }
  }
}

function checkOwners({ owners: named, retention = 0, plan }: SubmitMessage): void {
  integerIn(retention, 0, retentionTimesMs.length - 1, "retention");
  if (named === undefined) return;
  const { owners, ofRun } = named;
  listOf(owners, limits.maxRuns, "owners.owners");
  for (const [index, { number, quotaBlocks = 0 }] of owners.entries()) {
    integerIn(number, 0, Number.MAX_SAFE_INTEGER, `owners.owners[${index}].number`);
    integerIn(quotaBlocks, 0, Number.MAX_SAFE_INTEGER, `owners.owners[${index}].quotaBlocks`);
  }
  check(ofRun instanceof Uint16Array, () => "owners.ofRun is not a Uint16Array");
  check(ofRun.length === plan.runs.length, () => `owners.ofRun has ${ofRun.length} entries, not one for each run`);
  for (const index of ofRun) integerIn(index, 0, owners.length - 1, "an index of owners.ofRun");
}

/** The closing tokens, and one generated token before them, have room in the context. */
function checkClosing({ plan, params, closeTokenIds }: SubmitMessage, shape: Shape): void {
  if (closeTokenIds === undefined) return;
  const { vocabSize, blockTokens, contextTokens } = shape;
  check(closeTokenIds instanceof Int32Array, () => "closeTokenIds is not an Int32Array");
  check(params.maxTokens > 0, () => "closeTokenIds are given, but nothing is generated");
  integerIn(closeTokenIds.length, 0, blockTokens, "the length of closeTokenIds");
  tokensIn(closeTokenIds, vocabSize, "a token id of closeTokenIds");
  const { position, tokenIds } = plan.runs[plan.runs.length - 1];
  const end = position + tokenIds.length + 1 + closeTokenIds.length;
  const sentence = `a generated token and closeTokenIds end at position ${end}, past the context of ${contextTokens} tokens`;
  check(end <= contextTokens, () => sentence);
}

const isNoKey = (key: unknown): boolean => typeof key !== "string" || key.length !== blockKeyChars;

function checkRun(run: PlanRun, name: string, open: boolean, shape: Shape): void {
  const { tokenIds, position, blockKeys } = run;
  check(run.kind === "span" || run.kind === "main", () => `${name}.kind is neither "span" nor "main"`);
  check(run.spanId === undefined || typeof run.spanId === "string", () => `${name}.spanId is not a string`);
  check(tokenIds instanceof Int32Array, () => `${name}.tokenIds is not an Int32Array`);
  check(tokenIds.length > 0, () => `${name}.tokenIds is empty`);
  tokensIn(tokenIds, shape.vocabSize, `a token id of ${name}`);
  integerIn(position, 0, shape.contextTokens - 1, `${name}.position`);
  const end = position + tokenIds.length;
  const { contextTokens, blockTokens } = shape;
  check(end <= contextTokens, () => `${name} ends at position ${end}, past the context of ${contextTokens} tokens`);
  listOf(run.sees, limits.maxSegmentsPerRun, `${name}.sees`);
  listOf(blockKeys, limits.maxRequestTokens, `${name}.blockKeys`);
  const keyCount = (open ? fullBlockCount : blockCountForTokens)(tokenIds.length, blockTokens);
  check(blockKeys.length === keyCount, () => `${name} has ${blockKeys.length} block keys, not ${keyCount}`);
  const { quotes = [] } = run;
  listOf(quotes, limits.maxSegmentsPerRun, `${name}.quotes`);
  const isMalformed = [[run.rootKey], blockKeys, quotes].some((keys) => keys.findIndex(isNoKey) >= 0);
  check(!isMalformed, () => `a block key of ${name} is malformed`);
}

/**
 * What is seen lies in an earlier run, whole, and stands before the seeing run's first token. So |Δ| is below the
 * context, and a row at p reads at p - Δ below twice the context: backends rotate q that far.
 */
function checkSegment(
  segment: SegmentRef,
  index: number,
  runs: readonly PlanRun[],
  contextTokens: number,
  name: string,
): void {
  integerIn(segment.run, 0, index - 1, `${name}.run`);
  const seen = runs[segment.run];
  integerIn(segment.firstToken, 0, seen.tokenIds.length - 1, `${name}.firstToken`);
  integerIn(segment.tokenCount, 1, seen.tokenIds.length - segment.firstToken, `${name}.tokenCount`);
  integerIn(segment.offset, 1 - contextTokens, contextTokens - 1, `${name}.offset`);
  const start = seen.position + segment.firstToken + segment.offset;
  const end = start + segment.tokenCount;
  check(start >= 0, () => `${name} stands before position 0`);
  check(end <= runs[index].position, () => `${name} ends at position ${end}, after the run that sees it begins`);
}

function checkSparse({ plan, params }: SubmitMessage, sparse: SparseParams, shape: Shape): void {
  const { mode, tokens, refreshSteps = 1, leastCosine = 0, rectifyTokens = 0 } = sparse;
  const modes = shape.sparse?.modes ?? [];
  check(
    modes.includes(mode),
    () => `sparse.mode is ${String(mode)}, and this worker has ${modes.join(", ") || "none"}`,
  );
  integerIn(tokens, 1, limits.maxRequestTokens, "sparse.tokens");
  integerIn(refreshSteps, 1, limits.maxRefreshSteps, "sparse.refreshSteps");
  numberIn(leastCosine, -1, 1, "sparse.leastCosine");
  integerIn(rectifyTokens, 0, limits.maxRequestTokens, "sparse.rectifyTokens");
  check(params.maxTokens > 0, () => "sparse is given, but nothing is generated");
  const isBlended = plan.runs.some(({ blend }) => blend !== undefined);
  check(!isBlended, () => "sparse is given, and a run is blended: its KV is an approximation already");
}

function checkParams(params: GenerateParams, vocabSize: number): void {
  integerIn(params.maxTokens, 0, limits.maxRequestTokens, "maxTokens");
  integerIn(params.minTokens, 0, params.maxTokens, "minTokens");
  check(typeof params.ignoreEos === "boolean", () => "ignoreEos is not true or false");
  listOf(params.stopTokenIds, limits.maxStopTokens, "stopTokenIds");
  for (const tokenId of params.stopTokenIds) integerIn(tokenId, 0, vocabSize - 1, "a stop token id");
  checkSampling(params.sampling, vocabSize);
  if (params.grammar !== undefined) checkGrammar(params, params.grammar);
  if (params.thinking !== undefined) checkThinking(params.thinking, vocabSize);
}

function checkThinking({ opener, closer, maxTokens, endTokenIds }: ThinkingLimit, vocabSize: number): void {
  const areBytes = opener instanceof Uint8Array && closer instanceof Uint8Array;
  check(areBytes, () => "a mark of thinking is not a Uint8Array");
  integerIn(opener.length, 0, limits.maxThinkingMarkBytes, "the length of thinking.opener");
  integerIn(closer.length, 1, limits.maxThinkingMarkBytes, "the length of thinking.closer");
  integerIn(maxTokens, 0, limits.maxRequestTokens, "thinking.maxTokens");
  check(endTokenIds instanceof Int32Array, () => "thinking.endTokenIds is not an Int32Array");
  integerIn(endTokenIds.length, 1, limits.maxThinkingEndTokens, "the length of thinking.endTokenIds");
  for (const tokenId of endTokenIds) integerIn(tokenId, 0, vocabSize - 1, "a token id of thinking.endTokenIds");
}

function checkGrammar({ minTokens, ignoreEos }: GenerateParams, { id, symbols }: ByteGrammar): void {
  check(minTokens === 0 && !ignoreEos, () => "a grammar is given, and minTokens or ignoreEos too");
  const { maxGrammarIdChars, maxGrammarRules, maxGrammarSymbols } = limits;
  const named = id === undefined || (typeof id === "string" && id.length > 0 && id.length <= maxGrammarIdChars);
  check(named, () => `grammar.id is not a string of 1 to ${maxGrammarIdChars} characters`);
  check(symbols instanceof Int32Array, () => "grammar.symbols is not an Int32Array");
  integerIn(symbols.length, 1, maxGrammarRules + maxGrammarSymbols, "the length of grammar.symbols");
  let ruleCount = 0;
  for (const symbol of symbols) if (symbol === endOfRule) ruleCount += 1;
  integerIn(ruleCount, 1, maxGrammarRules, "the number of rules of grammar");
  const most = firstRuleSymbol + ruleCount - 1;
  // A rule ends behind an alternative or another rule.
  let before: number = endOfRule;
  for (const symbol of symbols) {
    const holds = symbol >= endOfRule && symbol <= most && (symbol !== endOfRule || before < 0);
    check(holds, () => `${symbol} is no symbol of grammar where it stands`);
    before = symbol;
  }
  check(before === endOfRule, () => "the last of the rules of grammar has no end");
}

function checkSampling(sampling: SamplingParams, vocabSize: number): void {
  numberIn(sampling.temperature, 0, 100, "temperature");
  numberIn(sampling.topP, 0, 1, "topP");
  integerIn(sampling.topK, 0, limits.maxRequestTokens * 8, "topK");
  numberIn(sampling.minP, 0, 1, "minP");
  numberIn(sampling.presencePenalty, -100, 100, "presencePenalty");
  numberIn(sampling.frequencyPenalty, -100, 100, "frequencyPenalty");
  numberIn(sampling.repetitionPenalty, 0.01, 100, "repetitionPenalty");
  integerIn(sampling.seed, Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER, "seed");
  integerIn(sampling.topLogprobs, -1, limits.maxTopLogprobs, "topLogprobs");
  listOf(sampling.logitBias, maxLogitBiases, "logitBias");
  for (const [tokenId, bias] of sampling.logitBias) {
    integerIn(tokenId, 0, vocabSize - 1, "a token id of logitBias");
    numberIn(bias, -1_000, 1_000, "a bias of logitBias");
  }
}
