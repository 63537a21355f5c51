/** Engine and CUDA backend on the emulated device, and requests of all kinds of sampling. */
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../../worker/backend/cuda/cuda-backend.ts";
import { rootKey, runBlockKeys } from "../../../worker/contract/block-key.ts";
import { greedySampling } from "../../../worker/contract/greedy-sampling.ts";
import type { PlanRun, SamplingParams, SubmitMessage, WorkerMessage } from "../../../worker/contract/messages.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";
import type { EngineLimits } from "../../../worker/engine/limits.ts";
import { Engine } from "../../../worker/engine/loop.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { type BackendParts, withParts } from "../../support/plain-backend.ts";
import { EmulatedDevice } from "./emulated-device.ts";

export const folder = join(import.meta.dir, "../../golden/llama");
const blockTokens = 16;

interface WorldOptions extends BackendParts {
  readonly graphs?: boolean;
  readonly kvBytes?: number;
  readonly limits?: Partial<EngineLimits>;
}

export class World {
  readonly device: EmulatedDevice;
  readonly backend: CudaBackend;
  readonly messages: WorkerMessage[] = [];
  readonly engine: Engine;

  private constructor(device: EmulatedDevice, backend: CudaBackend, { limits, ...parts }: WorldOptions) {
    this.device = device;
    this.backend = backend;
    const emit = (message: WorkerMessage) => void this.messages.push(message);
    const clock = () => 0;
    this.engine = new Engine({ backend: withParts(backend, parts), eosTokenIds: [], limits, clock, emit, debug: true });
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

export function tokensOf(answers: Map<string, WorkerMessage[]>): Record<string, number[]> {
  const tokens = (messages: readonly WorkerMessage[]) =>
    messages.flatMap((m) => (m.type === "tokens" ? m.tokenIds : []));
  return Object.fromEntries(Array.from(answers, ([id, messages]) => [id, tokens(messages)]));
}

/** Log-probabilities as float32 rounds them: the device answers no more. */
export function rounded(answers: Map<string, WorkerMessage[]>): unknown {
  const round = (value: unknown): unknown => {
    if (typeof value === "number") return Number(value.toFixed(4));
    if (Array.isArray(value)) return value.map(round);
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, round(field)]));
  };
  return round([...answers]);
}

export function prompt(length: number, seed: number): Int32Array {
  return Int32Array.from({ length }, (_, i) => (i * 37 + seed * 101) % 250);
}

export function submit(
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

export const mixed = [
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
