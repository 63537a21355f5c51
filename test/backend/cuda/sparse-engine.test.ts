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

async function run(messages: readonly SubmitMessage[], graphs = true) {
  const device = new EmulatedDevice(model.config.headDim);
  const sparse = { seats: 4, listTokens: 200, shadowBits: 4, rings: false } as const;
  const backend = await CudaBackend.open(device, model, { ...sparseModelOptions, graphs, sparse, kvBytes: 1 << 20 });
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
  const answers = messages.map(({ requestId }) =>
    emitted.flatMap((m) => (m.type === "tokens" && m.requestId === requestId ? m.tokenIds : [])),
  );
  const reports = messages.map(({ requestId }) => {
    const finished = emitted.find((m) => m.type === "finished" && m.requestId === requestId);
    return finished?.type === "finished" ? finished.sparse : undefined;
  });
  return { answers, reports };
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
});
