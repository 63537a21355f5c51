/** K that is moved, on the CPU backend with a small random model: against the same prompts, each computed for itself. */
import { afterAll, describe, expect, test } from "bun:test";
import { CpuBackend, type CpuBackendOptions, numericMode } from "../../worker/backend/cpu/cpu-backend.ts";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import { loadModel } from "../../worker/model/load.ts";
import { maxMoves } from "../../worker/relocation/relocating-cache.ts";
import { randomTensors, tinyConfig, writeModelFolder } from "../model/folder.ts";
import { Random } from "../native/random.ts";
import { answersOf, difference, recomputed, Texts } from "./relocate-answers.ts";

const options: CpuBackendOptions = {
  weightMode: "float32",
  kvType: "float32",
  kvBytes: 4 << 20,
  blockTokens: 4,
  threadCount: 2,
  maxRows: 256,
  maxLogitRows: 16,
};

/** Weights large enough that what a token sees, and where, shows in its log-probabilities. */
function seededFolder(): string {
  const random = new Random(5);
  const config = { ...tinyConfig, num_hidden_layers: 3 };
  const tensors = randomTensors(config);
  for (const [name, { data }] of tensors) {
    if (!name.includes("norm")) data.set(random.normals(data.length, 1e9).map((value) => value * 0.2));
    else data.fill(1);
  }
  return writeModelFolder(config, tensors);
}

const folder = seededFolder();
const texts = new Texts(tinyConfig.vocab_size, options.blockTokens);

async function open(kvType: "float32" | "float16"): Promise<CpuBackend> {
  const chosen = { ...options, kvType };
  const backend = await CpuBackend.open(loadModel(folder, numericMode(chosen)), chosen);
  afterAll(() => backend.dispose());
  return backend;
}

async function bothWays(kvType: "float32" | "float16", groups: readonly (readonly SubmitMessage[])[]) {
  const moved = await answersOf(await open(kvType), "relocate", groups);
  return { moved, alone: await recomputed(await open(kvType), groups) };
}

describe("requests at the same time, each with the documents elsewhere", async () => {
  const together = texts.askTogether();
  const exact = await bothWays("float32", [together]);
  const half = await bothWays("float16", [together]);
  // What one rounding of K and V to float16 does to an answer.
  const oneRounding = difference(exact.alone, half.alone);

  test("the answers are those of recomputation", () => {
    expect(exact.moved.size).toBe(together.length);
    expect(oneRounding).toBeGreaterThan(1e-5);
    // Turned in float32 by an angle in float64: some units in the last place of K, 2^-24, against float16's 2^-11. AMX takes
    // 16 bits of each factor, which a last place may turn over: 2^-15.
    expect(difference(exact.alone, exact.moved)).toBeLessThan(oneRounding / 16);
    // Rounded once when it was computed, and once or twice more where it was moved to.
    expect(difference(half.alone, half.moved)).toBeLessThan(3 * oneRounding);
  });

  test("where a document stands shows in the answer", async () => {
    const other = await bothWays("float32", [texts.askTogether(1)]);
    expect(difference(exact.alone, other.alone)).toBeGreaterThan(30 * oneRounding);
  });
});

test("moved as often as a K may be, an answer is as near as its roundings are together", async () => {
  const inTurn = Array.from({ length: maxMoves + 1 }, (_, i) => [texts.ask(i, [i % 2 === 0 ? 1 : 3, 0])]);
  const exact = await bothWays("float32", inTurn);
  const half = await bothWays("float16", inTurn);
  const oneRounding = difference(exact.alone, half.alone);
  // Roundings are independent, and both sides have their own.
  expect(difference(half.alone, half.moved)).toBeLessThan(Math.sqrt(maxMoves + 1) * 2 * oneRounding);
});
