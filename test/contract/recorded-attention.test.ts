/**
 * Recorded steps: made requests go through the engine and the packing planner, and each batch and each plan of its
 * attention is hashed. A change that is not meant to change what is computed, or in which order, leaves the hashes as
 * they are. Whoever does mean to change it copies the new hashes from the failing test, and says why in the commit.
 */
import { expect, test } from "bun:test";
import { createHash, type Hash } from "node:crypto";
import { PackPlanner } from "../../worker/attention/planner.ts";
import type { PackShape } from "../../worker/attention/shape.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { batchOf, h200, randomPieces } from "../attention/world.ts";
import { blockTokens, countUp, submitPlan, submitRuns } from "../engine/plans.ts";
import { randomBlendRuns, randomRuns } from "../sim/plans.ts";
import { Choices } from "../sim/random.ts";
import { attentionTrees, treeBatch } from "../support/attention-trees.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import { FakeDevice } from "../support/fake-device.ts";

class Record {
  readonly #hash: Hash = createHash("sha256");
  readonly #planners: readonly PackPlanner[];
  entries = 0;

  constructor(shapes: readonly PackShape[]) {
    this.#planners = shapes.map((shape) => new PackPlanner(shape));
  }

  /** Takes a batch, and what each planner makes of it. */
  add(batch: Batch): void {
    this.#lists([
      batch.tokenIds,
      batch.positions,
      batch.slots,
      batch.pieceRows,
      batch.pieceSegments,
      ...(batch.pieceGenerated ? [batch.pieceGenerated] : []),
      batch.segmentBlockStarts,
      batch.segmentFirstTokens,
      batch.segmentTokenCounts,
      batch.segmentOffsets,
      batch.blockIds,
      batch.logitRows,
    ]);
    for (const planner of this.#planners) {
      const { rows, smallItems, largeItems, slices, offsets, merges, partialCount } = planner.plan(batch);
      this.#lists([rows, smallItems, largeItems, slices, offsets, merges, Int32Array.of(partialCount)]);
    }
    this.entries += 1;
  }

  #lists(lists: readonly Int32Array[]): void {
    for (const list of lists) this.#hash.update(`${list.length}:${list.join(",")};`);
  }

  get digest(): string {
    return `${this.entries} ${this.#hash.digest("hex").slice(0, 32)}`;
  }
}

/** Plans of a small chip, whose blocks are as small as the made requests' are. */
const smallShapes: readonly PackShape[] = [
  { ...h200, blockTokens, multiprocessorCount: 8 },
  { ...h200, blockTokens, multiprocessorCount: 8, packing: false, maxPartialRows: 20 },
  { ...h200, blockTokens, kvHeads: 2, group: 16, hasWarpgroups: false },
];

const ownerCount = 3;

/** Most requests share documents; some are long prompts of the first owner, some are blended. */
function randomRequest(choices: Choices, index: number): SubmitMessage {
  const generates = choices.chance(0.85);
  const maxTokens = generates ? choices.int(1, 14) : 0;
  const params = { maxTokens, ignoreEos: choices.chance(0.5) };
  const sampling = choices.chance(0.2) ? { repetitionPenalty: 1.3 } : {};
  const isLong = choices.chance(0.2);
  const kind = choices.next();
  const options = { params, sampling, reuse: choices.chance(0.9) };
  const name = `request-${index}`;
  const message = isLong
    ? submitPlan(name, { system: countUp(index, 30), question: countUp(3, 11) }, options)
    : submitRuns(name, kind < 0.2 ? randomBlendRuns(choices, generates) : randomRuns(choices, generates), options);
  // Number 0 is nobody, who is no tenant beside others.
  const owners = [{ number: isLong ? 1 : choices.int(1, ownerCount), quotaBlocks: 30 }];
  const ofRun = new Uint16Array(message.plan.runs.length);
  return { ...message, owners: { owners, ofRun }, retention: choices.int(0, 2) };
}

interface Mode {
  readonly seed: number;
  readonly pipelined: boolean;
  readonly positions: "deferred" | "relocate";
  readonly blockCount: number;
}

/** 150 requests, some aborted and some keys evicted on the way. */
async function recordedSteps({ seed, pipelined, positions, blockCount }: Mode): Promise<string> {
  const choices = new Choices(seed);
  const record = new Record(smallShapes);
  const shape = { blockCount };
  const take = (batch: Batch) => record.add(batch);
  const relative = positions === "relocate";
  const backend = pipelined
    ? new FakeDevice({ shape, onBegin: take, relative })
    : new FakeBackend(shape, take, { relative });
  let nowMs = 0;
  let ended = 0;
  const limits = { maxRunningRequests: 6, stepTokens: 24, prefillTokensBesideDecodes: 8, rowCostTokens: 40 };
  const engine = new Engine({
    backend,
    eosTokenIds: [0],
    limits,
    clock: () => nowMs,
    emit: ({ type }) => {
      if (type === "finished" || type === "failed") ended += 1;
    },
    positions,
  });
  const count = 150;
  const messages: SubmitMessage[] = [];
  for (let step = 0; messages.length < count || ended < count; step++) {
    nowMs += choices.chance(0.02) ? 70_000 : 1;
    for (let i = choices.int(0, 2); i > 0 && messages.length < count; i--) {
      const message = randomRequest(choices, messages.length);
      messages.push(message);
      engine.submit(message);
    }
    if (choices.chance(0.05)) engine.abort(choices.pick(messages)?.requestId ?? "");
    if (choices.chance(0.05)) engine.evict(choices.pick(messages)?.plan.runs[0].blockKeys.slice(0, 1) ?? []);
    await engine.step();
    engine.checkInvariants();
    if (step > 5_000) throw new Error("requests do not end");
  }
  const { preemptions, hitTokens, evictedBlocks } = engine.stats();
  return `${record.digest} preemptions ${preemptions}, found ${hitTokens}, evicted ${evictedBlocks}`;
}

test.each([
  [
    { seed: 1, pipelined: false, positions: "deferred", blockCount: 64 },
    "921 eec0805eb4e031206e38fe1be4b595b5 preemptions 29, found 329, evicted 563",
  ],
  [
    { seed: 2, pipelined: false, positions: "deferred", blockCount: 22 },
    "971 8dfd122e5b0aa6e377b5aa8fb656e945 preemptions 22, found 198, evicted 512",
  ],
  [
    { seed: 3, pipelined: true, positions: "deferred", blockCount: 40 },
    "789 45646695d40b5635e768d5e4a64268e6 preemptions 44, found 275, evicted 469",
  ],
  [
    { seed: 4, pipelined: false, positions: "relocate", blockCount: 40 },
    "765 6207d310aaa63b0f99c6cadc9430768d preemptions 34, found 385, evicted 449",
  ],
] satisfies [Mode, string][])("steps of made requests, %o", async (mode, expected) => {
  expect(await recordedSteps(mode)).toBe(expected);
});

test("plans of trees of shared prefixes", () => {
  const record = new Record([h200, { ...h200, group: 8, hasWarpgroups: false }, { ...h200, packing: false }]);
  for (const [seed, tree] of attentionTrees.entries()) {
    record.add(treeBatch(tree, { blockTokens: 16, seed, offsetLimit: 1_000, oneSegment: seed % 2 === 0 }).batch);
  }
  expect(record.digest).toBe("20 e9b6953e901e89e0e15374572a789227");
});

test("plans of random pieces", () => {
  const record = new Record(smallShapes);
  const sizes = { blockTokens, documents: 5, pieces: 20, maxBlocks: 30, maxRows: 60, maxSegments: 4 };
  for (let seed = 0; seed < 100; seed++) record.add(batchOf(randomPieces(new Choices(seed), sizes)));
  expect(record.digest).toBe("100 f333d65557b7fd3dce8e02623db0eb0d");
});
