/** Engine and CUDA backend on the emulated device: sampling, chunks, batches, and what a step costs the host. */
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../../worker/backend/cuda/cuda-backend.ts";
import { rootKey, runBlockKeys } from "../../../worker/contract/block-key.ts";
import { greedySampling } from "../../../worker/contract/greedy-sampling.ts";
import type { PlanRun, SamplingParams, SubmitMessage, WorkerMessage } from "../../../worker/contract/messages.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";
import { Engine } from "../../../worker/engine/loop.ts";
import type { EngineLimits } from "../../../worker/engine/scheduler.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { EmulatedDevice } from "./emulated-device.ts";

const folder = join(import.meta.dir, "../../golden/llama");
const blockTokens = 16;

interface WorldOptions {
  readonly hostSampling?: boolean;
  readonly graphs?: boolean;
  readonly kvBytes?: number;
  readonly limits?: Partial<EngineLimits>;
}

class World {
  readonly device: EmulatedDevice;
  readonly backend: CudaBackend;
  readonly messages: WorkerMessage[] = [];
  readonly engine: Engine;

  private constructor(device: EmulatedDevice, backend: CudaBackend, { hostSampling, limits }: WorldOptions) {
    this.device = device;
    this.backend = backend;
    const emit = (message: WorkerMessage) => void this.messages.push(message);
    const clock = () => 0;
    this.engine = new Engine({ backend, eosTokenIds: [], limits, clock, emit, hostSampling, debug: true });
  }

  static async open(options: WorldOptions = {}): Promise<World> {
    const model = loadModel(folder, numericMode);
    const device = new EmulatedDevice(model.config.headDim);
    const { graphs, kvBytes = 1 << 20 } = options;
    const shared = { blockTokens, maxRows: 128, maxLogitRows: 8, reserveBytes: 0 };
    return new World(device, await CudaBackend.open(device, model, { ...shared, kvBytes, graphs }), options);
  }

  async run(messages: readonly SubmitMessage[]): Promise<Map<string, WorkerMessage[]>> {
    for (const message of messages) this.engine.submit(message);
    while (await this.engine.step());
    const failed = this.messages.find((message) => message.type === "failed");
    if (failed !== undefined) throw new Error(failed.message);
    const of = (id: string) => this.messages.filter((m) => m.type === "tokens" && m.requestId === id);
    return new Map(messages.map(({ requestId }) => [requestId, of(requestId)]));
  }
}

function tokensOf(answers: Map<string, WorkerMessage[]>): Record<string, number[]> {
  const tokens = (messages: readonly WorkerMessage[]) =>
    messages.flatMap((m) => (m.type === "tokens" ? m.tokenIds : []));
  return Object.fromEntries(Array.from(answers, ([id, messages]) => [id, tokens(messages)]));
}

/** Log-probabilities as float32 rounds them: the device answers no more. */
function rounded(answers: Map<string, WorkerMessage[]>): unknown {
  const round = (value: unknown): unknown => {
    if (typeof value === "number") return Number(value.toFixed(4));
    if (Array.isArray(value)) return value.map(round);
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, round(field)]));
  };
  return round([...answers]);
}

function prompt(length: number, seed: number): Int32Array {
  return Int32Array.from({ length }, (_, i) => (i * 37 + seed * 101) % 250);
}

function submit(
  requestId: string,
  tokenIds: Int32Array,
  sampling: Partial<SamplingParams> = {},
  maxTokens = 6,
): SubmitMessage {
  const root = rootKey("emulated", "salt" as CacheSalt, "main");
  const blockKeys = runBlockKeys(root, tokenIds, blockTokens, false);
  const run: PlanRun = { kind: "main", tokenIds, position: 0, sees: [], blockKeys, rootKey: root };
  const params = {
    maxTokens,
    minTokens: Math.min(2, maxTokens),
    ignoreEos: true,
    stopTokenIds: [3],
    sampling: { ...greedySampling, ...sampling },
  };
  return { type: "submit", requestId, plan: { runs: [run] }, params, reuse: true };
}

const mixed = [
  submit("greedy", prompt(20, 1), { topLogprobs: 3 }),
  submit("seeded", prompt(33, 2), { temperature: 0.9, topP: 0.8, seed: -5 }),
  submit("few", prompt(7, 3), { temperature: 1.2, topK: 12, minP: 0.02, seed: 2 ** 40 + 3 }),
  submit("penalised", prompt(18, 4), {
    repetitionPenalty: 1.3,
    presencePenalty: 0.5,
    frequencyPenalty: 0.2,
    topLogprobs: 0,
  }),
  submit("biased", prompt(9, 5), {
    temperature: 0.7,
    seed: 9,
    logitBias: [
      [17, 4],
      [17, 3],
      [40, -100],
    ],
  }),
];

describe("sampling on the device", () => {
  test("answers as the host's sampler: seeds, filters, penalties, bias, bans and log-probabilities", async () => {
    const device = await World.open();
    const host = await World.open({ hostSampling: true });
    expect(rounded(await device.run(mixed))).toEqual(rounded(await host.run(mixed)));
    expect(device.device.log).toContain("sample_rows");
    expect(host.device.log).not.toContain("sample_rows");
  });
});

describe("the same answers", () => {
  test("in chunks, beside others, alone, without graphs", async () => {
    const whole = tokensOf(await (await World.open()).run(mixed));
    const limits = { stepTokens: 24, prefillTokensBesideDecodes: 5, maxRunningRequests: 3 };
    expect(tokensOf(await (await World.open({ limits })).run(mixed))).toEqual(whole);
    expect(tokensOf(await (await World.open({ graphs: false })).run(mixed))).toEqual(whole);
    for (const message of mixed.slice(1, 3)) {
      expect(tokensOf(await (await World.open()).run([message]))).toEqual({
        [message.requestId]: whole[message.requestId],
      });
    }
  });
});

describe("what a step costs the host", () => {
  test("a decode step is one copy in, one graph, one copy out, and allocates nothing", async () => {
    const world = await World.open();
    await world.run([submit("first", prompt(20, 1))]);
    const { device } = world;
    const [captures, free] = [device.captures, device.freeBytes()];
    const launches = device.graphLaunches;
    device.log.length = 0;
    device.calls.length = 0;
    await world.run([submit("second", prompt(20, 2), {}, 4)]);
    expect([device.captures, device.freeBytes()]).toEqual([captures, free]);
    expect(device.graphLaunches - launches).toBe(3);
    expect(device.calls.slice(-9)).toEqual(Array(3).fill(["copyIn", "graph", "copyOut"]).flat());
  });

  test("a prompt's launches: four products a layer and one for the head", async () => {
    const world = await World.open();
    const { layerCount } = loadModel(folder, numericMode).config;
    world.device.log.length = 0;
    await world.run([submit("prompt", prompt(40, 1), {}, 1)]);
    const count = (name: string) => world.device.log.filter((entry) => entry === name).length;
    expect([count("matmul"), count("matvec_float")]).toEqual([4 * layerCount, 1]);
    expect(count("add_rmsnorm")).toBe(2 * layerCount + 1);
    expect([count("attention_prefill"), count("attention_decode")]).toEqual([layerCount, 0]);
    expect([count("embed_rows"), count("gather_rows"), count("copyIn"), count("copyOut")]).toEqual([1, 1, 1, 1]);
  });
});

describe("bounds", () => {
  test("a step that is too large is refused before anything is launched", async () => {
    const world = await World.open();
    const rows = 129;
    const zeros = new Int32Array(rows);
    const [one, two] = [Int32Array.of(0), Int32Array.of(0, 1)];
    const batch = {
      tokenIds: zeros,
      positions: zeros,
      slots: zeros,
      pieceRows: Int32Array.of(0, rows),
      pieceSegments: two,
      segmentBlockStarts: one,
      segmentFirstTokens: one,
      segmentTokenCounts: Int32Array.of(rows),
      segmentOffsets: one,
      blockIds: new Int32Array(9),
      logitRows: one,
    };
    world.device.calls.length = 0;
    await expect(world.backend.forward(batch)).rejects.toThrow("129 rows in a step of at most 128");
    expect(world.device.calls).toEqual([]);
  });
});
