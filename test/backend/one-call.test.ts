/**
 * Steps whose operations one native call runs, against the same steps call by call: the same bits, on every set of
 * instructions, for families that have all kinds of operations between them.
 */
import { describe, expect, spyOn, test } from "bun:test";
import { join } from "node:path";
import { CpuBackend } from "../../worker/backend/cpu/cpu-backend.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import { loadModel } from "../../worker/model/load.ts";
import { type CpuKernels, type Isa, openCpuKernels } from "../../worker/native/cpu-kernels.ts";
import { Matrix } from "../../worker/native/matrix.ts";
import { argmax } from "../../worker/sample/logprobs.ts";
import { firstDifferentBits } from "../native/compare.ts";
import { Choices } from "../sim/random.ts";
import { testSeed } from "../support/seed.ts";

const blockTokens = 16;

/** Chains that stand in 4 blocks of their own each: of chain i the tokens [starts[i], ends[i]) are computed. */
function batchOf(tokens: readonly Int32Array[], starts: number[], ends: number[], logitRows: number[]): Batch {
  const each = <T>(of: (chain: number) => T[]) => tokens.flatMap((_, chain) => of(chain));
  const rows = (chain: number) => Array.from({ length: ends[chain] - starts[chain] }, (_, i) => starts[chain] + i);
  const blocksOf = (chain: number) => Array.from({ length: 4 }, (_, i) => 4 * chain + i);
  const pieceRows = tokens.map((_, chain) =>
    ends.slice(0, chain + 1).reduce((sum, end, i) => sum + end - starts[i], 0),
  );
  const zeros = new Int32Array(tokens.length);
  return {
    tokenIds: Int32Array.from(each((chain) => rows(chain).map((at) => tokens[chain][at]))),
    positions: Int32Array.from(each(rows)),
    slots: Int32Array.from(each((chain) => rows(chain).map((at) => 4 * blockTokens * chain + at))),
    pieceRows: Int32Array.of(0, ...pieceRows),
    pieceSegments: Int32Array.from({ length: tokens.length + 1 }, (_, i) => i),
    segmentBlockStarts: Int32Array.from(tokens, (_, chain) => 4 * chain),
    segmentFirstTokens: zeros,
    segmentTokenCounts: Int32Array.from(ends),
    segmentOffsets: zeros,
    segmentPositions: zeros,
    blockIds: Int32Array.from(each(blocksOf)),
    logitRows: Int32Array.from(logitRows),
  };
}

const choices = new Choices(testSeed());
const chains = [0, 1].map(() => Int32Array.from({ length: 60 }, () => choices.int(0, 150)));
/** A prompt that goes on, prompts whose ends want logits, and rows that decode. */
const steps: readonly Batch[] = [
  batchOf(chains, [0, 0], [37, 20], []),
  batchOf(chains, [37, 20], [58, 33], [20, 33]),
  batchOf(chains, [58, 33], [59, 34], [0, 1]),
];

/** What each step answers, and what the probe of the last rows finds. */
async function answersOf(backend: CpuBackend): Promise<Float32Array[]> {
  const answers: Float32Array[] = [];
  for (const step of steps) answers.push((await backend.forward(step)).slice());
  answers.push((await backend.deviations(batchOf(chains, [58, 33], [60, 40], []))).slice());
  return answers;
}

const isas: readonly Isa[] = ["reference", "avx2", "avx512", "amx"];
const here: CpuKernels[] = [];
for (const isa of isas) {
  try {
    here.push(await openCpuKernels({ isa, threadCount: 2 }));
  } catch {
    // This CPU lacks the instruction set, or the system refuses it.
  }
}
for (const kernels of here) kernels.close();

interface Shape {
  readonly weightMode: "float32" | "int8";
  readonly callWork?: number;
}

/** Norms of heads; biases; norms of rows and behind layers; windows, GELU, two RoPE tables or caps; multipliers. */
describe.each(["qwen3", "seed-oss", "olmo2", "gemma2", "gemma3", "granite"])("%s", (family) => {
  const folder = join(import.meta.dir, "..", "golden", family);
  const open = (isa: Isa, { weightMode, callWork }: Shape) =>
    CpuBackend.open(loadModel(folder, weightMode), {
      ...{ weightMode, dense: "native", kvType: "float16", kvBytes: 4 << 20, blockTokens },
      ...{ threadCount: 2, maxRows: 64, maxLogitRows: 8, isa, ...(callWork !== undefined && { callWork }) },
    });

  test.each(here.map(({ isa }) => isa))(
    "%s: one call, some calls and a call for each give the same bits",
    async (isa) => {
      for (const weightMode of ["float32", "int8"] as const) {
        const answers: Float32Array[][] = [];
        for (const callWork of [0, undefined, 1_000_000]) {
          const backend = await open(isa, { weightMode, callWork });
          answers.push(await answersOf(backend));
          await backend.dispose();
        }
        const [plain, ...others] = answers;
        expect(plain.map(({ length }) => length > 0)).toEqual([false, true, true, true]);
        for (const other of others) {
          expect(other.map((answer, i) => firstDifferentBits(answer, plain[i]))).toEqual([-1, -1, -1, -1]);
        }
      }
    },
  );
});

test("a step calls no product by itself, and the greatest logits of its rows are found", async () => {
  const model = loadModel(join(import.meta.dir, "..", "golden", "qwen3"), "float32");
  const backend = await CpuBackend.open(model, {
    ...{ weightMode: "float32", dense: "native", kvType: "float16", kvBytes: 4 << 20, blockTokens },
    ...{ threadCount: 2, maxRows: 64, maxLogitRows: 8 },
  });
  await backend.forward(steps[0]);
  const multiply = spyOn(Matrix.prototype, "multiply");
  await backend.forward(steps[1]);
  const logits = await backend.forward(steps[2]);
  expect(multiply).toHaveBeenCalledTimes(0);
  multiply.mockRestore();
  const { vocabSize } = backend.shape;
  const rows = [0, 1].map((row) => logits.subarray(row * vocabSize, (row + 1) * vocabSize));
  expect([...backend.greatestLogits(2)]).toEqual(rows.map(argmax));
  logits[vocabSize + 7] = Number.NaN;
  expect([...backend.greatestLogits(2)]).toEqual([argmax(rows[0]), -1]);
  expect(backend.greatestLogits(0).length).toBe(0);
  await backend.dispose();
});
