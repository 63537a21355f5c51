/**
 * The backend's contract on the device, each call against the same in plain loops (test/backend/cuda):
 * `bun test/gpu/contract.ts [folder of NVIDIA's libraries]...`. Prompts whole and in chunks, beside others, segments at
 * other offsets and from inside blocks, copied tokens, deviations. Then the engine on it: preemption, blending, prefill
 * beside decode, every parameter of sampling (contract-engine.ts).
 */
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../worker/backend/cuda/cuda-backend.ts";
import type { ComputeDevice } from "../../worker/backend/cuda/device/device.ts";
import { kvBytesPerBlock } from "../../worker/backend/cuda/pool.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import { loadModel } from "../../worker/model/load.ts";
import { EmulatedDevice } from "../backend/cuda/emulated-device.ts";
import { type ContractSides, contractRows, engineChecks, type PoolSize } from "./contract-engine.ts";
import { gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { assertThat, Report } from "./report.ts";
import { greatestDistance, logitTolerance } from "./twin-backend.ts";

const options = gpuOptions();
const report = new Report();
const blockTokens = 16;
/** Without RoPE a copied token is off by rounding alone. */
const deviationNoise = 0.05;

interface Segment {
  readonly blocks: readonly number[];
  readonly first: number;
  readonly count: number;
  readonly offset: number;
}

interface PieceSpec {
  /** The run's blocks, its first token's position, and which of its tokens are computed. */
  readonly blocks: readonly number[];
  readonly position: number;
  readonly from: number;
  readonly to: number;
  readonly sees?: readonly Segment[];
  readonly seed: number;
}

const tokenOf = (seed: number, token: number): number => (seed * 91 + token * 37 + 5) % 150;

function batchOf(pieces: readonly PieceSpec[]): Batch {
  const [tokenIds, positions, slots, logitRows]: number[][] = [[], [], [], []];
  const [pieceRows, pieceSegments] = [[0], [0]];
  const [starts, firsts, counts, offsets, blockIds]: number[][] = [[], [], [], [], []];
  const add = ({ blocks, first, count, offset }: Segment): void => {
    starts.push(blockIds.length);
    firsts.push(first);
    counts.push(count);
    offsets.push(offset);
    blockIds.push(...blocks);
  };
  for (const { blocks, position, from, to, sees = [], seed } of pieces) {
    for (let token = from; token < to; token++) {
      tokenIds.push(tokenOf(seed, token));
      positions.push(position + token);
      slots.push(blocks[Math.floor(token / blockTokens)] * blockTokens + (token % blockTokens));
    }
    for (const segment of sees) add(segment);
    add({ blocks, first: 0, count: to, offset: 0 });
    logitRows.push(tokenIds.length - 1);
    pieceRows.push(tokenIds.length);
    pieceSegments.push(counts.length);
  }
  const int = (list: readonly number[]) => Int32Array.from(list);
  return {
    tokenIds: int(tokenIds),
    positions: int(positions),
    slots: int(slots),
    pieceRows: int(pieceRows),
    pieceSegments: int(pieceSegments),
    segmentBlockStarts: int(starts),
    segmentFirstTokens: int(firsts),
    segmentTokenCounts: int(counts),
    segmentOffsets: int(offsets),
    blockIds: int(blockIds),
    logitRows: int(logitRows),
  };
}

/** The device's backend and the one in plain loops, given the same calls. */
class Pair {
  private readonly sides: readonly [CudaBackend, CudaBackend];

  constructor(device: CudaBackend, loops: CudaBackend) {
    this.sides = [device, loops];
  }

  async forward(what: string, pieces: readonly PieceSpec[]): Promise<Float32Array> {
    const [device, loops] = this.sides;
    const got = (await device.forward(batchOf(pieces))).slice();
    compare(what, got, await loops.forward(batchOf(pieces)), logitTolerance);
    return got;
  }

  async copy(sourceSlots: number[], targetSlots: number[], delta: number): Promise<void> {
    const [sources, targets] = [Int32Array.from(sourceSlots), Int32Array.from(targetSlots)];
    const deltas = new Int32Array(sources.length).fill(delta);
    for (const side of this.sides) await side.copyTokens({ sourceSlots: sources, targetSlots: targets, deltas });
  }

  async deviations(what: string, pieces: readonly PieceSpec[]): Promise<string> {
    const [device, loops] = this.sides;
    const got = (await device.deviations(batchOf(pieces))).slice();
    const expected = (await loops.deviations(batchOf(pieces))).slice();
    const greatest = Math.max(...expected);
    assertThat(greatest > 0, `${what}: nothing deviates`);
    compare(what, got, expected, 0.05 * greatest + deviationNoise);
    return `greatest ${greatest.toPrecision(3)}`;
  }

  async dispose(): Promise<void> {
    for (const side of this.sides) await side.dispose();
  }
}

function compare(what: string, got: Float32Array, expected: Float32Array, tolerance: number): void {
  assertThat(got.length > 0, `${what}: no numbers`);
  const worst = greatestDistance(got, expected);
  assertThat(worst <= tolerance, `${what}: off by ${worst}, more than ${tolerance}`);
}

async function open(device: ComputeDevice, name: string): Promise<CudaBackend> {
  const model = loadModel(join("test/golden", name), numericMode);
  const shared = { kvBytes: 4 << 20, blockTokens, maxRows: 256, maxLogitRows: 8, reserveBytes: 0 };
  return CudaBackend.open(device, model, shared);
}

async function checkModel(name: string): Promise<string> {
  const { headDim } = loadModel(join("test/golden", name), numericMode).config;
  const loops = await open(new EmulatedDevice(headDim), name);
  const pair = new Pair(await open(await openTestDevice(headDim, options), name), loops);
  const prompt = { blocks: [3, 1, 7], position: 0, seed: 1 };
  const whole = await pair.forward("whole", [{ ...prompt, from: 0, to: 41 }]);
  await pair.forward("first chunk", [{ ...prompt, from: 0, to: 23 }]);
  const chunked = await pair.forward("second chunk", [{ ...prompt, from: 23, to: 41 }]);
  compare("chunks", chunked, whole, logitTolerance);

  const span = { blocks: [5, 2], position: 0, seed: 2, from: 0, to: 29 };
  const decode = { ...prompt, from: 40, to: 41 };
  const beside = await pair.forward("prefill beside decode", [span, decode]);
  compare("beside others", beside.subarray(beside.length / 2), whole, logitTolerance);

  const question = { blocks: [9], position: 60, seed: 3, from: 0, to: 11 };
  for (const offset of [0, 31, -17]) {
    const sees = [
      { blocks: [1, 7], first: 5, count: 20, offset: 0 },
      { blocks: [5, 2], first: 0, count: 29, offset },
    ];
    await pair.forward(`segments at ${offset}`, [{ ...question, sees }]);
    await pair.forward(`one row at ${offset}`, [{ ...question, sees, from: 10 }]);
  }

  const slots = (block: number) => Array.from({ length: blockTokens }, (_, i) => block * blockTokens + i);
  await pair.copy(slots(5), slots(4), 21);
  await pair.copy(slots(2), slots(6), -9);
  const sees = [{ blocks: [4, 6], first: 0, count: 29, offset: 0 }];
  await pair.forward("copied tokens", [{ ...question, sees }]);
  const details = await pair.deviations("deviations", [{ blocks: [4, 6], position: 21, seed: 2, from: 0, to: 29 }]);
  await pair.dispose();
  return details;
}

for (const name of ["llama", "qwen3", "qwen2", "smollm3", "phi3-partial", "llama-yarn", "granite"]) {
  await report.check(name, () => checkModel(name));
}

function sidesOf(name: string): ContractSides {
  const model = loadModel(join("test/golden", name), numericMode);
  const { config } = model;
  const openAs = async (device: ComputeDevice, { blockCount, blockTokens }: PoolSize, graphs: boolean) => {
    const kvBytes = blockCount * kvBytesPerBlock(config, { blockTokens });
    return CudaBackend.open(device, model, { ...contractRows, kvBytes, blockTokens, reserveBytes: 0, graphs });
  };
  return {
    openDevice: async (size, graphs) => openAs(await openTestDevice(config.headDim, options), size, graphs),
    openLoops: (size) => openAs(new EmulatedDevice(config.headDim), size, false),
  };
}

for (const name of ["llama", "qwen3", "granite"]) {
  for (const [what, check] of Object.entries(engineChecks)) {
    await report.check(`${name}, ${what}`, () => check(sidesOf(name)));
  }
}
process.exit(await report.end(resultPath(options, "contract.json")));
