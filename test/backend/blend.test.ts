/** Blending on the CPU backend: against the same prompt computed whole, on a small random model. */
import { afterAll, describe, expect, test } from "bun:test";
import type { Backend } from "../../worker/backend/backend.ts";
import { CpuBackend, type CpuBackendOptions, numericMode } from "../../worker/backend/cpu/cpu-backend.ts";
import type { Batch, TokenCopies } from "../../worker/contract/batch.ts";
import type { PlanRun, WorkerMessage } from "../../worker/contract/messages.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { loadModel } from "../../worker/model/load.ts";
import { type BlendPart, blendRuns, blockTokens, makeRuns, submitRuns } from "../engine/plans.ts";
import { randomTensors, tinyConfig, writeModelFolder } from "../model/folder.ts";
import { Random } from "../native/random.ts";

const options: CpuBackendOptions = {
  weightMode: "float32",
  kvType: "float32",
  kvBytes: 4 << 20,
  blockTokens,
  threadCount: 2,
  maxRows: 256,
  maxLogitRows: 4,
};

/** Weights large enough that what a token sees shows in its KV; the same at every run. */
function seededFolder(seed: number, layerCount: number, change: Record<string, unknown> = {}): string {
  const random = new Random(seed);
  const config = { ...tinyConfig, num_hidden_layers: layerCount, ...change };
  const tensors = randomTensors(config);
  for (const [name, { data }] of tensors) {
    if (!name.includes("norm")) data.set(random.normals(data.length, 1e9).map((value) => value * 0.2));
    else data.fill(1);
  }
  return writeModelFolder(config, tensors);
}

interface Probe {
  readonly batch: Batch;
  readonly deviations: Float32Array;
}

/** Keeps the last logits and all probes; `choose` stands in for the deviations. */
class WatchedBackend implements Backend {
  readonly name = "watched";
  readonly shape: Backend["shape"];
  logits = new Float32Array(0);
  readonly probes: Probe[] = [];
  choose: ((rows: number) => Float32Array) | undefined;
  readonly inner: Backend;

  constructor(inner: Backend) {
    this.inner = inner;
    this.shape = inner.shape;
  }

  async forward(batch: Batch): Promise<Float32Array> {
    const logits = await this.inner.forward(batch);
    if (logits.length > 0) this.logits = logits.slice();
    return logits;
  }

  copyTokens(copies: TokenCopies): Promise<void> {
    return this.inner.copyTokens(copies);
  }

  async deviations(batch: Batch): Promise<Float32Array> {
    const deviations = this.choose?.(batch.tokenIds.length) ?? (await this.inner.deviations(batch)).slice();
    this.probes.push({ batch: structuredClone(batch), deviations });
    return deviations;
  }

  dispose(): Promise<void> {
    return this.inner.dispose();
  }
}

async function openBackend(folder: string, change: Partial<CpuBackendOptions> = {}): Promise<WatchedBackend> {
  const chosen = { ...options, ...change };
  return new WatchedBackend(await CpuBackend.open(loadModel(folder, numericMode(chosen)), chosen));
}

/** Logits behind a prompt's last token, nothing of it found. */
async function logitsOf(backend: WatchedBackend, runs: PlanRun[], stepTokens = 256): Promise<Float32Array> {
  const ends: WorkerMessage[] = [];
  const emit = (message: WorkerMessage): void => void ends.push(message);
  const limits = { stepTokens, maxRunningRequests: 4 };
  const engine = new Engine({ backend, eosTokenIds: [], clock: () => 0, emit, limits, debug: true });
  engine.submit({ ...submitRuns("r", runs, { params: { maxTokens: 1 } }), reuse: false });
  while (await engine.step());
  expect(ends.at(-1)).toMatchObject({ type: "finished", reason: "length" });
  return backend.logits;
}

function distance(a: Float32Array, b: Float32Array): number {
  return Math.hypot(...a.map((value, i) => value - b[i]));
}

function randomText(random: Random, count: number): Int32Array {
  return Int32Array.from({ length: count }, () => random.integer(3, tinyConfig.vocab_size - 1));
}

/** 9 tokens that no copy covers and 124 that are copied. */
function randomParts(random: Random): BlendPart[] {
  const text = (count: number): Int32Array => randomText(random, count);
  return [{ plain: text(7) }, { copied: text(45) }, { plain: text(2) }, { copied: text(38) }, { copied: text(41) }];
}

const question = randomText(new Random(3), 6);

function exactRuns(parts: readonly BlendPart[]): PlanRun[] {
  const whole = parts.flatMap((part) => [...("copied" in part ? part.copied : part.plain)]);
  return makeRuns({ system: Int32Array.from(whole), question }, true);
}
const blended = (parts: readonly BlendPart[], recomputeRatio: number): PlanRun[] =>
  blendRuns(parts, { recomputeRatio, question });
const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Windows that reach over one or two of the copied texts; in Gemma 3 layers that slide have a RoPE of their own. */
const sliding = { sliding_window: 50, sliding_window_pattern: 2 };
const windows: [string, Record<string, unknown>][] = [
  ["whose layers slide", { architectures: ["MistralForCausalLM"], sliding_window: 50 }],
  [
    "of which half of the layers slide",
    { ...sliding, architectures: ["Gemma3ForCausalLM"], rope_parameters: undefined },
  ],
];

describe.each(windows)("a model of four layers %s", (_, change) => {
  test("with every token computed again the logits are those of the plain prompt", async () => {
    const backend = await openBackend(seededFolder(5, 4, change));
    const parts = randomParts(new Random(1));
    const exact = await logitsOf(backend, exactRuns(parts));
    const size = Math.hypot(...exact);
    expect(distance(await logitsOf(backend, blended(parts, 1), 50), exact)).toBeLessThan(2e-5 * size);
    expect(distance(await logitsOf(backend, blended(parts, 0)), exact)).toBeGreaterThan(0.02 * size);
    await backend.dispose();
  });

  test("moved copies of one layer are the plain prompt", async () => {
    const backend = await openBackend(seededFolder(6, 1, change));
    const parts = randomParts(new Random(4));
    const exact = await logitsOf(backend, exactRuns(parts));
    const size = Math.hypot(...exact);
    for (const ratio of [0, 0.5]) {
      expect(distance(await logitsOf(backend, blended(parts, ratio)), exact)).toBeLessThan(1e-5 * size);
    }
    const [system, ...rest] = parts;
    expect(distance(await logitsOf(backend, blended([...rest, system], 0)), exact)).toBeGreaterThan(0.01 * size);
    await backend.dispose();
  });
});

describe("a model of four layers", async () => {
  const backend = await openBackend(seededFolder(5, 4));
  afterAll(() => backend.dispose());

  test("with every token computed again the logits are those of the plain prompt, in steps of any size", async () => {
    const parts = randomParts(new Random(1));
    const exact = await logitsOf(backend, exactRuns(parts));
    // Rounding only: 4 layers x 7 matrices x sqrt(96) summands x 2^-24 relative, on logits of norm 18: 3e-4.
    for (const stepTokens of [256, 50]) {
      expect(distance(await logitsOf(backend, blended(parts, 1), stepTokens), exact)).toBeLessThan(3e-4);
    }
    expect(distance(await logitsOf(backend, blended(parts, 0)), exact)).toBeGreaterThan(1);
  });

  test("the error falls as more is computed again, and faster than with tokens chosen at random", async () => {
    const random = new Random(2);
    const ratios = [0, 0.15, 0.3, 0.5, 0.8, 1];
    const chosen = ratios.map((): number[] => []);
    const atRandom = ratios.map((): number[] => []);
    for (let prompt = 0; prompt < 6; prompt++) {
      const parts = randomParts(random);
      const exact = await logitsOf(backend, exactRuns(parts));
      for (const [i, ratio] of ratios.entries()) {
        backend.choose = undefined;
        chosen[i].push(distance(await logitsOf(backend, blended(parts, ratio)), exact));
        backend.choose = (rows) => Float32Array.from({ length: rows }, () => random.next());
        atRandom[i].push(distance(await logitsOf(backend, blended(parts, ratio)), exact));
      }
    }
    backend.choose = undefined;
    const errors = chosen.map(mean);
    expect(errors).toEqual(errors.toSorted((a, b) => b - a));
    // At 0 and 1 there is nothing to choose.
    for (let i = 1; i < ratios.length - 1; i++) expect(errors[i]).toBeLessThan(mean(atRandom[i]));
  });
});

test("those that deviated most have the KV of full visibility afterwards, the others what they had", async () => {
  const backend = await openBackend(seededFolder(5, 2));
  const recomputeRatio = 0.3;
  await logitsOf(backend, blended(randomParts(new Random(1)), recomputeRatio), 40);
  const probes = [...backend.probes];
  expect(probes.map((probe) => probe.batch.tokenIds.length)).toEqual([40, 40, 40, 13]);
  const before = probes.flatMap(({ deviations }) => [...deviations]);
  const after: number[] = [];
  for (const { batch } of probes) after.push(...(await backend.inner.deviations(batch)));
  const isCopied = (token: number): boolean => token >= 7 && token !== 52 && token !== 53;
  const copied = before.flatMap((_, token) => (isCopied(token) ? [token] : []));
  const worst = copied.toSorted((a, b) => before[b] - before[a] || a - b).slice(0, Math.ceil(124 * recomputeRatio));
  for (const [token, deviation] of after.entries()) {
    // K and V of norm 10 and less, computed twice in chunks of other sizes: some 2^-20 of them, squared.
    if (worst.includes(token) || !isCopied(token)) expect(deviation).toBeLessThan(1e-8);
    else expect(Math.abs(deviation / before[token] - 1)).toBeLessThan(1e-3);
  }
  await backend.dispose();
});

describe("a model of one layer, whose KV knows a token and its place alone", async () => {
  for (const kvType of ["float32", "float16"] as const) {
    const backend = await openBackend(seededFolder(6, 1), { kvType });
    afterAll(() => backend.dispose());

    test(`moved copies alone are the plain prompt, KV in ${kvType}`, async () => {
      const parts = randomParts(new Random(4));
      const exact = await logitsOf(backend, exactRuns(parts));
      // One rotation more: three roundings of each element of K, in float16 one of 11 bits.
      const bound = kvType === "float32" ? 1e-4 : 0.05;
      for (const ratio of [0, 0.5]) {
        expect(distance(await logitsOf(backend, blended(parts, ratio)), exact)).toBeLessThan(bound);
      }
      const [system, ...rest] = parts;
      const unmoved = blended([...rest, system], 0);
      expect(distance(await logitsOf(backend, unmoved), exact)).toBeGreaterThan(4 * bound);
    });
  }
});
