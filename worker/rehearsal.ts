/**
 * A new process does everything for the first time: code is compiled while it runs, and the first prompt over many
 * fragments takes several times as long as the tenth. So made-up prompts of that form run through an engine of their
 * own before the worker says that it is ready. Only their questions are computed: what they find is whatever the pool's
 * blocks hold, and nobody reads the answers. Nothing of it is counted, found or kept.
 */
import { Derivation } from "./cache/derivations.ts";
import { foldSpan, runBlockKeys } from "./contract/block-key.ts";
import { greedySampling } from "./contract/greedy-sampling.ts";
import type { PlanRun, SegmentRef, SubmitMessage } from "./contract/messages.ts";
import { nobody } from "./contract/owners.ts";
import type { BlockKey } from "./contract/units.ts";
import { defaultEngineLimits, type EngineOptions } from "./engine/limits.ts";
import { Engine } from "./engine/loop.ts";

const spanCount = 32;
const blocksOfSpan = 8;
const questionTokens = 64;
/** No more rounds begin after this time, nor after so many. */
const mostMs = 100;
const mostRounds = 4;
/** Decode steps of a timed answer. */
const timedDecodes = 16;
/** The keys are an engine's that ends with the rehearsal, so they need not be secret. */
const spanRoot = "0".repeat(32) as BlockKey;
const mainRoot = "1".repeat(32) as BlockKey;

/** @param nowMs of the same clock as the engine's */
export async function rehearse({ backend, limits, clock }: EngineOptions): Promise<void> {
  const { blockTokens, blockCount, contextTokens } = backend.shape;
  const spanTokens = blocksOfSpan * blockTokens;
  const spans = Math.min(
    spanCount,
    Math.floor(blockCount / (2 * blocksOfSpan)),
    Math.floor((contextTokens - 2 * questionTokens) / spanTokens),
  );
  if (spans < 1) return;
  const texts = Array.from({ length: spans }, (_, index) => new Int32Array(spanTokens).fill(index));
  const engine = new Engine({ backend, eosTokenIds: [], ...(limits && { limits }), clock, emit: () => undefined });
  for (const tokenIds of texts) fill(engine, tokenIds, blockTokens);
  const endMs = clock() + mostMs;
  for (let round = 0; round < mostRounds && clock() < endMs; round++) {
    engine.submit(question(round, texts, blockTokens));
    while (await engine.step());
  }
}

/**
 * What a prompt of one whole step takes to compute, which is weighed against loading from the first question on. A device
 * does for the first time much that it does faster later, so a prompt of the same length runs before.
 * @returns undefined where no prompt fits
 */
export async function timePrompt({ backend, limits, clock }: EngineOptions) {
  const { blockTokens, blockCount, contextTokens } = backend.shape;
  const { stepTokens } = { ...defaultEngineLimits, ...limits };
  const tokens = Math.min(stepTokens, contextTokens - 1, blockTokens * Math.floor(blockCount / 2));
  if (tokens < questionTokens) return undefined;
  const engine = new Engine({ backend, eosTokenIds: [], ...(limits && { limits }), clock, emit: () => undefined });
  let ms = 0;
  for (let round = 0; round < 2; round++) {
    const beganMs = clock();
    // Nothing of it is stored, so nothing is copied to the host's memory either.
    engine.submit(prompt(round, tokens, 1, blockTokens));
    while (await engine.step());
    ms = clock() - beganMs;
  }
  return { tokens, ms };
}

/**
 * Rows of a prompt that take as long as a step of one decode (EngineLimits.decodeStepRows): what a processor does at
 * once in a product differs by a factor of four, and other work on the machine must not make up this engine's mind, so
 * the fastest of some steps count.
 * @returns undefined where no prompt fits, or the clock is too coarse to tell
 */
export async function timeDecodes({ backend, limits, clock }: EngineOptions): Promise<number | undefined> {
  const { blockTokens, blockCount, contextTokens } = backend.shape;
  if (questionTokens + timedDecodes >= Math.min(contextTokens, blockTokens * blockCount)) return undefined;
  const engine = new Engine({ backend, eosTokenIds: [], ...(limits && { limits }), clock, emit: () => undefined });
  let [promptMs, decodeMs] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  const timedStep = async (): Promise<number> => {
    const beganMs = clock();
    await engine.step();
    return clock() - beganMs;
  };
  const endMs = clock() + mostMs;
  for (let round = 0; round < mostRounds && clock() < endMs; round++) {
    engine.submit(prompt(round, questionTokens, 1 + timedDecodes, blockTokens));
    promptMs = Math.min(promptMs, await timedStep());
    for (let step = 0; step < timedDecodes; step++) decodeMs = Math.min(decodeMs, await timedStep());
    while (await engine.step());
  }
  const rows = (questionTokens * decodeMs) / promptMs;
  return rows > 0 && Number.isFinite(rows) ? rows : undefined;
}

/** A prompt of its own tokens alone, which is not kept. */
function prompt(round: number, tokens: number, maxTokens: number, blockTokens: number): SubmitMessage {
  const tokenIds = new Int32Array(tokens).fill(round);
  const blockKeys = runBlockKeys(mainRoot, tokenIds, blockTokens, false);
  const run: PlanRun = { kind: "main", tokenIds, position: 0, sees: [], blockKeys, rootKey: mainRoot };
  const params = { maxTokens, minTokens: 0, ignoreEos: true, stopTokenIds: [], sampling: greedySampling };
  return { type: "submit", requestId: `${round}`, plan: { runs: [run] }, params, reuse: false };
}

/** Gives blocks the keys of a span, as if it had been computed. */
function fill({ cache }: Engine, tokenIds: Int32Array, blockTokens: number): void {
  const keys = runBlockKeys(spanRoot, tokenIds, blockTokens, true);
  const derivation = new Derivation([spanRoot]);
  for (const [index, key] of keys.entries()) {
    const blockId = cache.allocate(nobody);
    if (blockId === undefined) return;
    const start = index * blockTokens;
    const content = { tokenIds, start, end: start + blockTokens, position: start, place: 0 };
    cache.store(blockId, key, keys[index - 1] ?? spanRoot, content, derivation);
    cache.release(blockId);
  }
}

/** A question over all spans that differs from the others, and an answer of two tokens. */
function question(round: number, texts: readonly Int32Array[], blockTokens: number): SubmitMessage {
  const sees: SegmentRef[] = [];
  let mainKey = mainRoot;
  let position = 0;
  const runs = texts.map((tokenIds, index): PlanRun => {
    const blockKeys = runBlockKeys(spanRoot, tokenIds, blockTokens, true);
    sees.push({ run: index, firstToken: 0, tokenCount: tokenIds.length, offset: position });
    mainKey = foldSpan(mainKey, blockKeys.at(-1) ?? spanRoot);
    position += tokenIds.length;
    return { kind: "span", tokenIds, position: 0, sees: [], blockKeys, rootKey: spanRoot, spanId: String(index) };
  });
  const tokenIds = new Int32Array(questionTokens).fill(round);
  const blockKeys = runBlockKeys(mainKey, tokenIds, blockTokens, false);
  const open: PlanRun = { kind: "main", tokenIds, position, sees, blockKeys, rootKey: mainKey };
  const params = { maxTokens: 2, minTokens: 0, ignoreEos: true, stopTokenIds: [], sampling: greedySampling };
  return { type: "submit", requestId: `${round}`, plan: { runs: [...runs, open] }, params, reuse: true };
}
