/** Times of the row-wise kernels in the shapes of kernel-timings.ts. */
import { encodeSamples } from "../../worker/backend/cuda/sampling.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { SamplingParams } from "../../worker/contract/messages.ts";
import type { Random } from "../native/random.ts";
import { fillRandom, type KernelTimer, model, putInts } from "./kernel-timings.ts";

const maxRows = 8_192;
const params: SamplingParams = { ...greedySampling, temperature: 1, topP: 0.9, seed: 7 };

export async function timeRows(timer: KernelTimer, random: Random): Promise<void> {
  const { device } = timer;
  const { hidden, ffn, headDim, queryHeads, kvHeads } = model;
  const width = (queryHeads + 2 * kvHeads) * headDim;
  const random16 = (name: string, count: number) => {
    const buffer = device.allocate(name, count * 2);
    fillRandom(device, random, buffer, "bfloat16");
    return buffer;
  };
  const [delta, gateUp, qkv] = [hidden, 2 * ffn, width].map((size) => random16("rows", maxRows * size));
  const [weight, pool] = [random16("weight", hidden), random16("pool", maxRows * 2 * kvHeads * headDim)];
  const residual = device.allocate("residual", maxRows * hidden * 4);
  fillRandom(device, random, residual, "float32");
  const out = device.allocate("out", maxRows * ffn * 2);
  const rotations = device.allocate("rotations", maxRows * headDim * 4);
  device.fill(rotations, 0);
  const ascending = putInts(
    device,
    Int32Array.from({ length: maxRows }, (_, i) => i),
  );
  for (const rows of [64, maxRows]) {
    const count = putInts(device, Int32Array.of(rows));
    const rest = [null, 1, null, null, 1, weight, 0, 1e-6, count, hidden, out, null, 0] as const;
    const norm = device.prepare("add_rmsnorm", residual, delta, ...rest);
    await timer.time(`add_rmsnorm ${rows}`, { bytes: rows * hidden * 12, flop: 0 }, 20, () =>
      norm({ grid: [rows], blockThreads: hidden / 8 }),
    );
    const silu = device.prepare("activate", gateUp, count, ffn, 0, out, null, 0);
    await timer.time(`activate ${rows}`, { bytes: rows * ffn * 6, flop: 0 }, 20, () =>
      silu({ grid: [Math.ceil(ffn / 2048), rows], blockThreads: 256 }),
    );
    const places = [rotations, ascending, ascending, count, queryHeads, kvHeads, headDim, headDim, 64, pool] as const;
    const finish = device.prepare("qkv_finish", qkv, null, weight, weight, 0, 1e-6, ...places);
    const finishBytes = rows * headDim * (4 * queryHeads + 8 * kvHeads);
    await timer.time(`qkv_finish ${rows}`, { bytes: finishBytes, flop: 0 }, 20, () =>
      finish({ grid: [rows, (queryHeads + 2 * kvHeads) / 8], blockThreads: 256 }),
    );
  }
  await timeSampling(timer, random);
}

async function timeSampling(timer: KernelTimer, random: Random): Promise<void> {
  const { device } = timer;
  const { vocabSize } = model;
  const rowCount = 64;
  const logits = device.allocate("logits", rowCount * vocabSize * 4);
  fillRandom(device, random, logits, "float32");
  const ids = device.allocate("ids", rowCount * 4);
  const count = putInts(device, Int32Array.of(rowCount));
  const kinds = {
    greedy: { temperature: 0 },
    "plain temperature": { topP: 1 },
    "top-p 0.9, flat": {},
    "top-p 0.9, peaked": { temperature: 0.1 },
  } as const;
  for (const [name, kind] of Object.entries(kinds)) {
    const request = { params: { ...params, ...kind }, history: undefined, bannedTokenIds: [], index: 3 };
    const { rows } = encodeSamples(Array.from({ length: rowCount }, () => request));
    const sample = device.prepare("sample_rows", logits, vocabSize, putInts(device, rows), count, ids, count, ids);
    await timer.time(`sample 64, ${name}`, { bytes: rowCount * vocabSize * 4, flop: 0 }, 4, () =>
      sample({ grid: [rowCount], blockThreads: 1024 }),
    );
  }
}
