/** The engine over a CUDA backend whose rows choose what they read, on the emulated device. */
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../../worker/backend/cuda/cuda-backend.ts";
import { rootKey, runBlockKeys } from "../../../worker/contract/block-key.ts";
import { greedySampling } from "../../../worker/contract/greedy-sampling.ts";
import type { PlanRun, SubmitMessage, WorkerMessage } from "../../../worker/contract/messages.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";
import { Engine } from "../../../worker/engine/loop.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { sparseModelOptions } from "../../gpu/sparse-backend.ts";
import { EmulatedDevice } from "./emulated-device.ts";

const model = loadModel(join(import.meta.dir, "../../golden/qwen3"), numericMode);
const blockTokens = 16;
const promptOf = (length: number, seed: number) => Int32Array.from({ length }, (_, i) => (i * 37 + seed * 101) % 150);

/** Two spans and a question behind them. */
function submitOf(requestId: string, seed: number, tokens: number | undefined): SubmitMessage {
  const root = (kind: PlanRun["kind"]) => rootKey("emulated", "salt" as CacheSalt, kind);
  const run = (kind: PlanRun["kind"], tokenIds: Int32Array, position: number, sees: PlanRun["sees"]): PlanRun => {
    const rootOf = root(kind);
    const blockKeys = runBlockKeys(rootOf, tokenIds, blockTokens, kind === "span");
    return { kind, tokenIds, position, sees, blockKeys, rootKey: rootOf };
  };
  const spans = [37, 22].map((length, index) => promptOf(length, seed + index));
  const sees = spans.map(({ length }, index) => ({
    run: index,
    firstToken: 0,
    tokenCount: length,
    offset: index === 0 ? 0 : 37,
  }));
  const runs = [...spans.map((ids) => run("span", ids, 0, [])), run("main", promptOf(40, seed + 7), 59, sees)];
  const params = { maxTokens: 24, minTokens: 0, ignoreEos: true, stopTokenIds: [], sampling: greedySampling };
  const sparse = tokens === undefined ? {} : { sparse: { mode: "now", tokens, rectifyTokens: 8 } as const };
  return { type: "submit", requestId, plan: { runs }, params, reuse: true, ...sparse };
}

async function run(messages: readonly SubmitMessage[], graphs = true, kvBytes = 1 << 20, listTokens = 200) {
  const device = new EmulatedDevice(model.config.headDim);
  const sparse = { seats: 4, listTokens, shadowBits: 4, rings: false } as const;
  const backend = await CudaBackend.open(device, model, { ...sparseModelOptions, graphs, sparse, kvBytes });
  const emitted: WorkerMessage[] = [];
  const engine = new Engine({
    backend,
    eosTokenIds: [],
    limits: { stepTokens: 64, maxRunningRequests: 4 },
    clock: () => 0,
    emit: (message) => void emitted.push(message),
    debug: true,
    sparse: { fromTokens: 32, tailTokens: 16, mostCost: Number.POSITIVE_INFINITY },
  });
  for (const message of messages) engine.submit(message);
  while (await engine.step());
  await backend.dispose();
  const { preemptions } = engine.stats();
  const answers = messages.map(({ requestId }) =>
    emitted.flatMap((m) => (m.type === "tokens" && m.requestId === requestId ? m.tokenIds : [])),
  );
  const reports = messages.map(({ requestId }) => {
    const finished = emitted.find((m) => m.type === "finished" && m.requestId === requestId);
    return finished?.type === "finished" ? finished.sparse : undefined;
  });
  return { answers, reports, preemptions, blockBytes: backend.shape.kvBytesPerBlock };
}

describe("answers of rows that choose", () => {
  test("are those of dense rows where they choose everything, beside each other and beside dense ones", async () => {
    const dense = await run([1, 2].map((seed) => submitOf(`r${seed}`, seed, undefined)));
    for (const graphs of [true, false]) {
      const all = await run([submitOf("r1", 1, 150), submitOf("r2", 2, 150)], graphs);
      expect(all.answers).toEqual(dense.answers);
      expect(all.reports[0]).toMatchObject({ mode: "now", tokens: 150, changed: 0, measured: 0 });
      expect(all.reports[0]?.steps).toBeGreaterThan(15);
    }
    const mixed = await run([submitOf("r1", 1, 150), submitOf("r2", 2, undefined)]);
    expect(mixed.answers).toEqual(dense.answers);
  });

  test("are others where they choose few, and every list of a step that chose is counted", async () => {
    const dense = await run([submitOf("r1", 1, undefined)]);
    const { answers, reports } = await run([submitOf("r1", 1, 8)]);
    expect(answers[0]).toHaveLength(24);
    expect(answers).not.toEqual(dense.answers);
    const report = reports[0];
    if (report === undefined) throw new Error("nothing is told of what was chosen");
    expect(report.lists).toBe(report.steps * model.config.layerCount * model.config.kvHeadCount);
    expect(report.chosen).toBe(report.lists);
    expect(report.rectifiedTokens).toBeGreaterThan(0);
  });

  test("take no blocks of the pool, since what is chosen is read where it is kept", async () => {
    const { blockBytes, ...dense } = await run([submitOf("r1", 1, undefined)]);
    // 3 and 2 blocks of spans and 4 of question and answer, and one that is left for the next token.
    const { answers, reports } = await run([submitOf("r1", 1, 150)], true, 10 * blockBytes);
    expect(answers).toEqual(dense.answers);
    expect(reports[0]?.steps).toBeGreaterThan(15);
  });

  test("choose while there is a seat, also where a request had to be preempted", async () => {
    const { blockBytes } = await run([submitOf("r1", 1, undefined)]);
    const both = [submitOf("r1", 1, 150), submitOf("r2", 2, 150)];
    const dense = await run(both.map(({ sparse: _, ...message }) => message));
    const { answers, reports, preemptions } = await run(both, true, 16 * blockBytes);
    expect(answers).toEqual(dense.answers);
    expect(preemptions).toBeGreaterThan(0);
    for (const report of reports) expect(report?.steps).toBeGreaterThan(5);
  });
});

test("a request that sees more segments than a row can choose from reads all of them", async () => {
  const message = submitOf("r1", 1, 8);
  const [span, , main] = message.plan.runs;
  if (span === undefined || main === undefined) throw new Error("the plan has three runs");
  const at = (count: number) => {
    const sees = Array.from({ length: count }, () => ({ run: 0, firstToken: 0, tokenCount: 1, offset: 0 }));
    return { ...message, plan: { runs: [span, { ...main, sees }] }, params: { ...message.params, maxTokens: 3 } };
  };
  // With its own tokens before the tail.
  for (const [count, steps] of [
    [1_023, 2],
    [1_024, 0],
  ] as const) {
    const { reports } = await run([at(count)], true, 1 << 20, 2_000);
    expect(reports[0]?.steps).toBe(steps);
  }
});
