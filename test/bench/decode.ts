/**
 * A decode step of the engine (schedule, dense algebra, attention, sampling) against its dense algebra and its attention
 * alone, in turn, in one process.
 */

import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { CpuBackend, numericMode, openArithmetic } from "../../worker/backend/cpu/cpu-backend.ts";
import { parseWorkerConfig } from "../../worker/config.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { loadModel } from "../../worker/model/load.ts";
import { atMost, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { kvOption, kvSettings } from "./support/kv.ts";
import { figure, median } from "./support/stats.ts";
import { chainPlan, greedyParams } from "./support/worker.ts";

const batchSizes = [1, 8];
const contextTokenCounts = [128, 512, 2_048];
/** The context of the bars: a question over a handful of fragments. */
const barContextTokens = 512;
const rounds = 100;

interface Row {
  readonly batchSize: number;
  readonly contextTokens: number;
  readonly stepMs: number;
  readonly denseMs: number;
  readonly attentionMs: number;
}

class DecodeBench {
  readonly #backend: CpuBackend;
  readonly #engine: Engine;
  readonly #card: Pick<ModelCard, "digest" | "blockTokens">;
  #started = new Set<string>();
  #failure: string | undefined;

  constructor(backend: CpuBackend, digest: string, stepTokens: number) {
    this.#backend = backend;
    this.#card = { digest, blockTokens: backend.shape.blockTokens };
    this.#engine = new Engine({
      backend,
      eosTokenIds: [],
      limits: { stepTokens },
      clock: () => performance.now(),
      emit: (message) => {
        if (message.type === "tokens") this.#started.add(message.requestId);
        if (message.type === "failed") this.#failure = message.message;
      },
    });
  }

  async measure(batchSize: number, contextTokens: number): Promise<Row> {
    const requestIds = Array.from({ length: batchSize }, (_, index) => `${batchSize}/${contextTokens}/${index}`);
    for (const [index, requestId] of requestIds.entries()) {
      const tokenIds = Int32Array.from({ length: contextTokens }, (_, i) => 3 + ((i * 7_919 + index * 131) % 4_000));
      const plan = chainPlan(tokenIds, this.#card);
      // The first one decodes while the last one's prompt is computed, and none may end before the last round.
      this.#engine.submit({ type: "submit", requestId, plan, params: greedyParams(rounds + 200), reuse: false });
    }
    while (requestIds.some((requestId) => !this.#started.has(requestId))) {
      if (this.#failure !== undefined) throw new CommandError(this.#failure);
      await this.#engine.step();
    }
    const times: { stepMs: number[]; denseMs: number[]; attentionMs: number[] } = {
      stepMs: [],
      denseMs: [],
      attentionMs: [],
    };
    const measure = async (into: number[], run: () => Promise<unknown>, isCounted: boolean): Promise<void> => {
      const startMs = performance.now();
      await run();
      if (isCounted) into.push(performance.now() - startMs);
    };
    for (let round = -5; round < rounds; round++) {
      await measure(times.stepMs, () => this.#engine.step(), round >= 0);
      await measure(times.attentionMs, () => this.#backend.runOnly("attention", batchSize), round >= 0);
      await measure(times.denseMs, () => this.#backend.runOnly("dense", batchSize), round >= 0);
    }
    for (const requestId of requestIds) this.#engine.abort(requestId);
    await this.#engine.step();
    const [stepMs, denseMs, attentionMs] = [times.stepMs, times.denseMs, times.attentionMs].map(median);
    return { batchSize, contextTokens, stepMs, denseMs, attentionMs };
  }
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const weights = option("weights") ?? "float32";
  const config = parseWorkerConfig({
    ...process.env,
    SPANGATE_MODEL: option("model") ?? demoModelFolder,
    SPANGATE_WEIGHTS: weights,
    ...kvSettings(option("kv")),
  });
  // What a server multiplies with, unless SPANGATE_DENSE says otherwise.
  const { kernels, dense } = await openArithmetic(config);
  const mode = numericMode({ ...config, dense });
  const model = loadModel(config.modelFolder, mode);
  const { kvBytes = 2 ** 30, stepTokens: maxRows } = config;
  const backend = await CpuBackend.open(model, {
    ...config,
    sparse: undefined,
    dense,
    kvBytes,
    maxRows,
    maxLogitRows: 64,
    kernels,
  });
  const bench = new DecodeBench(backend, model.digest, config.stepTokens);
  const rows: Row[] = [];
  for (const batchSize of batchSizes) {
    for (const contextTokens of contextTokenCounts) {
      say(`batch ${batchSize}, context ${contextTokens}`);
      rows.push(await bench.measure(batchSize, contextTokens));
    }
  }
  await backend.dispose();
  const bars: Bar[] = rows
    .filter(({ contextTokens }) => contextTokens === barContextTokens)
    .flatMap(({ batchSize, contextTokens, stepMs, denseMs, attentionMs }) => {
      const at = `batch ${batchSize}, context ${contextTokens}`;
      return [
        atMost(`step / dense algebra, ${at}`, stepMs / denseMs, 1.6),
        atMost(`step / dense algebra and attention, ${at}`, stepMs / (denseMs + attentionMs), 1.25),
      ];
    });
  return {
    model: `${model.id} (${mode})`,
    header: ["batch", "context", "step ms", "dense algebra ms", "ratio", "attention ms", "ratio to both"],
    rows: rows.map((row) => [
      String(row.batchSize),
      String(row.contextTokens),
      figure(row.stepMs),
      figure(row.denseMs),
      figure(row.stepMs / row.denseMs),
      figure(row.attentionMs),
      figure(row.stepMs / (row.denseMs + row.attentionMs)),
    ]),
    notes: [`Medians of ${rounds} steps each, ${config.threadCount} threads.`],
    bars,
  };
}

export const decodeBench: Bench = {
  name: "decode",
  summary: "A decode step against its dense algebra and its attention alone, batch 1 and 8",
  options: { model: "DIR  model folder (the demo model)", weights: "float32 | int8", kv: kvOption },
  run,
};
