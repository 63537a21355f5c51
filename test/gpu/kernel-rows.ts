/** The row-wise kernels on the device against their twins: fresh random inputs with outliers. */
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { Random } from "../native/random.ts";
import { putRotations } from "./kernel-attention.ts";
import { bfloat16Step, KernelTwin } from "./kernel-twin.ts";

const float32Error = 1e-5;
const twinBytes = 16 << 20;
const [queryHeads, kvHeads, blockTokens, epsilon] = [6, 2, 16, 1e-5];

/** One launch is larger than its count says: rows beyond it must stay as they are. */
const [rowCount, gridRows] = [13, 16];
/** Experts of a row. */
const perRow = 6;

export async function checkNorm(device: CudaDevice, random: Random, hidden: number): Promise<string> {
  const twin = new KernelTwin(device, twinBytes, 0);
  const residual = twin.put("residual", random.normals(gridRows * hidden));
  const delta = twin.putBfloat16("delta", random.normals(gridRows * hidden));
  const weight = twin.putBfloat16("weight", random.normals(hidden));
  const out = twin.space("out", gridRows * hidden * 2);
  const [bias, deltaNorm] = ["bias", "norm of delta"].map((name) => twin.putBfloat16(name, random.normals(hidden)));
  const alone = twin.space("out without delta", gridRows * hidden * 2);
  const sandwich = twin.space("out with norms on both sides", gridRows * hidden * 2);
  const plain = twin.space("out without norm", gridRows * hidden * 2);
  const deltas = twin.putBfloat16("deltas of experts", random.normals(gridRows * perRow * hidden));
  const factors = twin.put("their factors", random.normals(gridRows * perRow));
  const experts = twin.space("out with experts", gridRows * hidden * 2);
  const count = twin.put("count", Int32Array.of(rowCount));
  twin.upload();
  const size = { grid: [gridRows], blockThreads: Math.min(1024, Math.ceil(hidden / 8 / 32) * 32) } as const;
  const rows = [epsilon, count, hidden] as const;
  twin.launch("add_rmsnorm", [residual, delta, null, 1, null, null, 0.22, weight, 0, ...rows, out, null, 0], size);
  twin.launch("add_rmsnorm", [residual, null, null, 1, null, null, 1, weight, 0, ...rows, alone, null, 0], size);
  twin.launch(
    "add_rmsnorm",
    [residual, delta, null, 1, null, deltaNorm, 1, weight, 1, ...rows, sandwich, null, 0],
    size,
  );
  twin.launch("add_rmsnorm", [residual, delta, null, 1, bias, null, 1, null, 0, ...rows, plain, null, 0], size);
  twin.launch(
    "add_rmsnorm",
    [residual, deltas, factors, perRow, null, null, 1, weight, 0, ...rows, experts, null, 0],
    size,
  );
  return twin.compare([
    { buffer: residual, type: "float32", relative: float32Error, absolute: float32Error },
    { buffer: out, type: "bfloat16", relative: bfloat16Step, absolute: float32Error },
    { buffer: alone, type: "bfloat16", relative: bfloat16Step, absolute: float32Error },
    { buffer: sandwich, type: "bfloat16", relative: bfloat16Step, absolute: float32Error },
    { buffer: plain, type: "bfloat16", relative: bfloat16Step, absolute: float32Error },
    { buffer: experts, type: "bfloat16", relative: bfloat16Step, absolute: float32Error },
  ]);
}

export async function checkRows(device: CudaDevice, random: Random): Promise<string> {
  const twin = new KernelTwin(device, twinBytes, 0);
  const [hidden, vocabSize, ffn] = [264, 50, 2056];
  const ids = Int32Array.from({ length: gridRows }, (_, i) =>
    i % 3 === 2 ? -1 - i : random.integer(0, vocabSize - 1),
  );
  const table = twin.putBfloat16("table", random.normals(vocabSize * hidden));
  const tokenIds = twin.put("ids", ids);
  const sampled = twin.put(
    "sampled",
    Int32Array.from({ length: gridRows }, () => random.integer(0, vocabSize - 1)),
  );
  const gateUp = twin.putBfloat16("gate and up", random.normals(gridRows * 2 * ffn));
  const picked = twin.put(
    "rows",
    Int32Array.from({ length: gridRows }, () => random.integer(0, gridRows - 1)),
  );
  const residual = twin.space("residual", gridRows * hidden * 4);
  const activated = twin.space("activated", gridRows * ffn * 2);
  const gelu = twin.space("activated by GELU", gridRows * ffn * 2);
  const logits = twin.put(
    "logits",
    random.normals(gridRows * vocabSize).map((x) => 40 * x),
  );
  const qkv = twin.putBfloat16("qkv", random.normals(gridRows * 5 * hidden));
  const [qNorm, kNorm] = [3, 1].map((heads) => twin.putBfloat16("norm", random.normals(heads * hidden)));
  const gathered = twin.space("gathered", gridRows * hidden * 4);
  const frequencies = twin.put(
    "frequencies",
    Float32Array.from({ length: 20 }, (_, i) => 10_000 ** (-i / 20)),
  );
  const rotations = twin.space("rotations", 999 * 20 * 8);
  const count = twin.put("count", Int32Array.of(rowCount));
  const factor = new Uint8Array(Float64Array.of(1.25).buffer);
  twin.upload();
  const size = { grid: [gridRows], blockThreads: 256 } as const;
  twin.launch("embed_rows", [table, tokenIds, sampled, count, hidden, 12, residual], size);
  const wide = { grid: [2, gridRows], blockThreads: 256 } as const;
  twin.launch("activate", [gateUp, count, ffn, 0, activated, null, 0], wide);
  twin.launch("activate", [gateUp, count, ffn, 1, gelu, null, 0], wide);
  twin.launch("cap_logits", [logits, rowCount * vocabSize, 30], { grid: [2], blockThreads: 256 });
  const [q, k] = [3 * 264, 264];
  const projections = [qkv, qNorm, kNorm, epsilon, count, q, k, q + 2 * k] as const;
  twin.launch("norm_projections", projections, { grid: [gridRows, 2], blockThreads: 256 });
  twin.launch("gather_rows", [residual, picked, count, hidden * 4, gathered], size);
  twin.launch("fill_rope_table", [frequencies, 20, -333, 999, factor, rotations], { grid: [7], blockThreads: 256 });
  return twin.compare([
    { buffer: activated, type: "bfloat16", relative: bfloat16Step, absolute: float32Error },
    { buffer: gelu, type: "bfloat16", relative: bfloat16Step, absolute: float32Error },
    { buffer: logits, type: "float32", relative: float32Error, absolute: float32Error },
    { buffer: qkv, type: "bfloat16", relative: bfloat16Step, absolute: float32Error },
    { buffer: rotations, type: "float32", relative: 1e-7, absolute: 1e-7 },
  ]);
}

/** K and V into the pool, copies of them with and without a rotation, and how far they are from what the rows give anew. */
export async function checkHeads(
  device: CudaDevice,
  random: Random,
  headDim: number,
  hasBias: boolean,
  hasNorm: boolean,
) {
  const twin = new KernelTwin(device, 48 << 20, headDim);
  const [heads, layers, blockCount] = [queryHeads + 2 * kvHeads, 2, 4];
  // Whole, or all but a piece that copies take whole or in parts.
  const rotaryDim = hasBias ? headDim : headDim - (headDim % 64 === 0 ? 16 : 8);
  const layerStride = blockCount * kvHeads * 2 * blockTokens * headDim;
  const slotList = random.shuffle(Array.from({ length: blockCount * blockTokens }, (_, i) => i));
  const integers = (low: number, high: number) =>
    twin.put(
      "integers",
      Int32Array.from({ length: gridRows }, () => random.integer(low, high)),
    );
  const qkv = twin.putBfloat16("qkv", random.normals(gridRows * heads * headDim));
  const norm = () => (hasNorm ? twin.putBfloat16("norm", random.normals(headDim)) : null);
  const [bias, qNorm, kNorm] = [
    hasBias ? twin.putBfloat16("bias", random.normals(heads * headDim)) : null,
    norm(),
    norm(),
  ];
  const pool = twin.putBfloat16("pool", random.normals(layers * layerStride));
  const rotations = putRotations(twin, rotaryDim);
  const [positions, deltas] = [integers(0, 2000), integers(-2000, 2000)];
  const [slotsHere, from, to] = [0, 1, 2].map((part) => slotList.slice(part * gridRows, (part + 1) * gridRows));
  // Every third token is rotated in place.
  const inPlace = to.map((slot, i) => (i % 3 === 0 ? from[i] : slot));
  const [slots, sources, targets] = [slotsHere, from, inPlace].map((list) => twin.put("slots", Int32Array.from(list)));
  const [count, layerRotates] = [
    twin.put("count", Int32Array.of(rowCount)),
    twin.put("flags", Int32Array.of(1, hasBias ? 2 : 0)),
  ];
  const before = twin.space("deviations before", gridRows * 4);
  const after = twin.space("deviations after", gridRows * 4);
  twin.upload();
  const shape = [queryHeads, kvHeads, headDim, rotaryDim, blockTokens];
  const size = { grid: [gridRows], blockThreads: 256 } as const;
  const rows = [positions, slots, count, ...shape, pool];
  twin.launch("deviations", [qkv, bias, kNorm, 0, epsilon, rotations, ...rows, before], size);
  const grid = [gridRows, Math.ceil(heads / 8)] as const;
  twin.launch("qkv_finish", [qkv, bias, qNorm, kNorm, 0, epsilon, rotations, ...rows], { grid, blockThreads: 256 });
  twin.launch("deviations", [qkv, bias, kNorm, 0, epsilon, rotations, ...rows, after], size);
  const copies = [
    sources,
    targets,
    deltas,
    count,
    layerRotates,
    rotations,
    0.8,
    rotations,
    0.5,
    kvHeads,
    headDim,
    rotaryDim,
    blockTokens,
  ];
  twin.launch("copy_tokens", [...copies, layerStride, pool], {
    grid: [Math.ceil(gridRows / 16), layers],
    blockThreads: 256,
  });
  return twin.compare([
    { buffer: qkv, type: "bfloat16", relative: bfloat16Step, absolute: 1e-4 },
    { buffer: pool, type: "bfloat16", relative: bfloat16Step, absolute: 1e-3 },
    { buffer: before, type: "float32", relative: 0.01, absolute: 0.01 },
    // Rows that stand in their slots are 0 away from them, exactly.
    { buffer: after, type: "float32", relative: 0, absolute: 0 },
  ]);
}
