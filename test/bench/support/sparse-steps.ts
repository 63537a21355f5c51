/**
 * Decode steps of a 0.6B shape over 16,384 tokens, dense and sparse, in turn in one process. Weights are random, and the
 * context's KV is random numbers that are put into the pool, so that nothing but the steps takes time.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CommandError } from "../../../gateway/cli/support/command.ts";
import { CpuBackend, numericMode, openArithmetic } from "../../../worker/backend/cpu/cpu-backend.ts";
import { Derivation } from "../../../worker/cache/derivations.ts";
import { parseWorkerConfig } from "../../../worker/config.ts";
import { nobody } from "../../../worker/contract/owners.ts";
import type { SparseParams } from "../../../worker/contract/sparse.ts";
import { Engine } from "../../../worker/engine/loop.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { Random } from "../../native/random.ts";
import type { BenchContext } from "../bench.ts";
import { qwen3Shape, writeRandomModel } from "./random-model.ts";
import { median } from "./stats.ts";
import { chainPlan, greedyParams } from "./worker.ts";

const [contextTokens, chosenTokens, rounds] = [16_384, 1_024, 11];
const arms: Readonly<Record<string, SparseParams | undefined>> = {
  dense: undefined,
  now: { mode: "now", tokens: chosenTokens },
  ahead: { mode: "ahead", tokens: chosenTokens },
  Quest: { mode: "quest", tokens: chosenTokens },
};

export interface StepTimes {
  readonly rows: readonly { readonly arm: string; readonly stepMs: number; readonly ratio: number }[];
  readonly note: string;
}

export async function compareSteps(say: BenchContext["say"]): Promise<StepTimes> {
  const folder = mkdtempSync(join(tmpdir(), "spangate-sparse-"));
  try {
    say("writing random weights of 0.6B");
    writeRandomModel(folder, qwen3Shape);
    return await timeSteps(folder, say);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function timeSteps(folder: string, say: BenchContext["say"]): Promise<StepTimes> {
  const config = parseWorkerConfig({ ...process.env, SPANGATE_MODEL: folder });
  const { kernels, dense } = await openArithmetic(config);
  const model = loadModel(folder, numericMode({ ...config, dense }));
  const sparse = { seats: 1, listTokens: 2 * chosenTokens, shadowBits: 4, rings: true } as const;
  const options = { ...config, sparse, dense, kvBytes: 2.5 * 2 ** 30, maxRows: 128, maxLogitRows: 8, kernels };
  const backend = await CpuBackend.open(model, options);
  const failures: string[] = [];
  const engine = new Engine({
    backend,
    eosTokenIds: [],
    limits: { stepTokens: 128 },
    clock: () => performance.now(),
    emit: (message) => {
      if (message.type === "failed") failures.push(message.message);
    },
    sparse: { fromTokens: 0 },
  });
  const tokenIds = Int32Array.from({ length: contextTokens }, (_, i) => 3 + ((i * 7_919) % 4_000));
  const plan = chainPlan(tokenIds, { digest: model.digest, blockTokens: backend.shape.blockTokens });
  say("filling the context");
  fill(engine, backend, plan.runs[0]);
  const timesMs: Record<string, number[]> = {};
  for (const [arm, params] of Object.entries(arms)) {
    say(`${arm}: ${rounds} steps`);
    const message = { type: "submit", requestId: arm, plan, params: greedyParams(rounds + 40), reuse: true } as const;
    // What is rectified is a step in 64, and not one of these.
    engine.submit({ ...message, ...(params && { sparse: { ...params, rectifyTokens: 0 } }) });
    timesMs[arm] = await stepTimes(engine, 4);
    engine.abort(arm);
    while (await engine.step());
  }
  await backend.dispose();
  if (failures.length > 0) throw new CommandError(failures[0] ?? "");
  const denseMs = median(timesMs.dense ?? []);
  const rows = Object.entries(timesMs).map(([arm, ms]) => ({ arm, stepMs: median(ms), ratio: denseMs / median(ms) }));
  const note = `Steps: medians of ${rounds}, ${config.threadCount} threads, ${backend.name}; random weights and random KV, without rectifying.`;
  return { rows, note };
}

/** @param before steps that are not counted: the first chooses and copies all of it */
async function stepTimes(engine: Engine, before: number): Promise<number[]> {
  const timesMs: number[] = [];
  for (let step = -before; step < rounds; step++) {
    const beganMs = performance.now();
    await engine.step();
    if (step >= 0) timesMs.push(performance.now() - beganMs);
  }
  return timesMs;
}

/** Gives blocks of random float16 the keys of the prompt. */
function fill(engine: Engine, backend: CpuBackend, run: ReturnType<typeof chainPlan>["runs"][number]): void {
  const random = new Random(7);
  const { blockTokens } = backend.shape;
  const packed = new Uint8Array(backend.mover.format.bytes);
  const numbers = new Uint16Array(packed.buffer);
  // Of either sign, from 1/8 to 2.
  for (let at = 0; at < numbers.length; at++) {
    numbers[at] = random.integer(0x3000, 0x3fff) + 0x8000 * random.integer(0, 1);
  }
  for (const [index, key] of run.blockKeys.entries()) {
    const blockId = engine.cache.allocate(nobody);
    if (blockId === undefined) throw new CommandError("the pool does not hold the context");
    // The same numbers, which stand elsewhere in each block.
    numbers.copyWithin(0, random.integer(1, 64) * 32);
    backend.mover.unpack(blockId, packed);
    const start = index * blockTokens;
    const content = { tokenIds: run.tokenIds, start, end: start + blockTokens, position: start, place: 0 };
    engine.cache.store(blockId, key, run.blockKeys[index - 1] ?? run.rootKey, content, new Derivation([]));
    engine.cache.release(blockId);
  }
}
