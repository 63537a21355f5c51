/**
 * Many requests that decode over thousands of fragments, on a device that has room for less than all of them in a step:
 * nobody fails, all get the answers they get alone, and all go on at the same pace.
 */
import { expect, test } from "bun:test";
import { mostPieceWords } from "../../worker/attention/plan-format.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import type { SubmitMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { blockTokens, countUp, submitPlan } from "../engine/plans.ts";
import { referenceAnswer } from "../engine/reference.ts";
import { FakeDevice } from "../support/fake-device.ts";
import { withParts } from "../support/plain-backend.ts";

const requestCount = 12;
const answerTokens = 40;
const contextTokens = 512;
/** For the rows of about five of the requests. */
const stepListWords = 5_000;
const roomWords = stepListWords + (requestCount * contextTokens) / blockTokens;

const fragments = Array.from({ length: 110 }, (_, i) => Int32Array.of(i % 90, (7 * i) % 90));

function messageOf(index: number): SubmitMessage {
  const spans = fragments.slice(index, index + 100);
  const params = { maxTokens: answerTokens, ignoreEos: true };
  return submitPlan(`r${index}`, { spans, question: countUp(index, 3 + index) }, { params });
}

function assertRoom({ pieceRows, pieceSegments, blockIds }: Batch): void {
  let words = blockIds.length;
  for (let piece = 0; piece + 1 < pieceRows.length; piece++) {
    words += mostPieceWords(pieceSegments[piece + 1] - pieceSegments[piece], pieceRows[piece + 1] - pieceRows[piece]);
  }
  if (words > roomWords) throw new Error(`a step of ${words} words does not fit into ${roomWords}`);
}

interface Crowd {
  readonly tokens: ReadonlyMap<string, readonly number[]>;
  /** Steps between two tokens of one request while all decode, at most. */
  readonly longestGap: number;
  readonly preemptions: number;
}

async function life(blockCount: number, pipelined: boolean): Promise<Crowd> {
  const tokens = new Map<string, number[]>();
  const lastStep = new Map<string, number>();
  let [steps, longestGap, ended] = [0, 0, 0];
  const emit = (message: WorkerMessage): void => {
    if (message.type === "failed") throw new Error(`${message.requestId}: ${message.message}`);
    if (message.type === "finished") ended += 1;
    if (message.type !== "tokens") return;
    const { requestId, tokenIds } = message;
    const before = lastStep.get(requestId);
    if (before !== undefined && lastStep.size === requestCount && ended === 0) {
      longestGap = Math.max(longestGap, steps - before);
    }
    lastStep.set(requestId, steps);
    tokens.set(requestId, [...(tokens.get(requestId) ?? []), ...tokenIds]);
  };
  const backend = new FakeDevice({ shape: { blockCount, contextTokens }, onForward: assertRoom, onBegin: assertRoom });
  const limits = { maxRunningRequests: requestCount, maxWaitingRequests: requestCount, stepTokens: 64, stepListWords };
  const parts = withParts(backend, { pipelined });
  const engine = new Engine({ backend: parts, eosTokenIds: [], limits, clock: () => steps, emit, debug: true });
  for (let index = 0; index < requestCount; index++) engine.submit(messageOf(index));
  while (await engine.step()) steps += 1;
  expect(engine.stats().usedBlocks).toBe(0);
  return { tokens, longestGap, preemptions: engine.stats().preemptions };
}

function expectAnswers({ tokens }: Crowd, blockCount: number): void {
  const shape = new FakeDevice({ shape: { blockCount, contextTokens } }).shape;
  for (let index = 0; index < requestCount; index++) {
    expect(tokens.get(`r${index}`)).toEqual([...referenceAnswer(messageOf(index), shape, []).tokenIds]);
  }
}

for (const [steps, pipelined] of [
  ["one by one", false],
  ["two in flight", true],
] as const) {
  test(`rows that do not fit go first in the next step, ${steps}`, async () => {
    const crowd = await life(400, pipelined);
    expectAnswers(crowd, 400);
    // Five rows a step: each request has its turn within three steps.
    expect(crowd.longestGap).toBeWithin(2, 5);
  });

  test(`so they do where blocks are taken from requests, ${steps}`, async () => {
    const crowd = await life(150, pipelined);
    expectAnswers(crowd, 150);
    expect(crowd.preemptions).toBeGreaterThan(0);
  });
}
