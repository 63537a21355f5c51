/** The worker's configuration: environment -> one frozen object. The gateway's supervisor sets these. */
import { z } from "zod";
import { limits } from "./contract/limits.ts";
import { forcedTokens, type ServedMode, servedModes } from "./contract/sparse.ts";
import { mx8Group } from "./contract/units.ts";

const number = (min: number, max: number) => {
  const error = `must be a number from ${min} to ${max}`;
  return z.coerce.number({ error }).int({ error }).min(min, { error }).max(max, { error });
};
const int = (min: number, max: number, fallback: number) => number(min, max).default(fallback);

const schema = z.object({
  SPANGATE_MODEL: z.string().min(1),
  SPANGATE_MODEL_NAME: z.string().max(200).default(""),
  SPANGATE_DEVICE: z
    .string()
    .regex(/^(?:cpu|cuda:\d{1,2})$/, 'must be "cpu" or "cuda:N"')
    .default("cpu"),
  SPANGATE_WEIGHTS: z.enum(["float32", "int8"]).default("float32"),
  SPANGATE_DENSE: z.enum(["onnx", "native"], { error: 'must be "onnx" or "native"' }).optional(),
  SPANGATE_KV_TYPE: z.enum(["float32", "float16"], { error: 'must be "float32" or "float16"' }).optional(),
  SPANGATE_KV_CODEC: z.enum(["raw", "mx8"], { error: 'must be "raw" or "mx8"' }).default("raw"),
  SPANGATE_KV_POSITIONS: z
    .enum(["deferred", "relocate"], { error: 'must be "deferred" or "relocate"' })
    .default("deferred"),
  SPANGATE_KV_BYTES: number(1 << 20, 2 ** 42).optional(),
  SPANGATE_KV_HOST_BYTES: int(0, 2 ** 42, 0),
  SPANGATE_SPARSE: z.enum(["off", ...servedModes], { error: 'must be "off", "now" or "ahead"' }).default("off"),
  SPANGATE_SPARSE_TOKENS: int(16, limits.maxRequestTokens, 2_048),
  SPANGATE_SPARSE_FROM: int(0, limits.maxRequestTokens, 16_384),
  // 2 bits chose as well in a trial; they wait for a real model's proof.
  SPANGATE_SPARSE_SHADOW_BITS: z.enum(["4"], { error: 'must be "4"' }).default("4"),
  SPANGATE_BLOCK_TOKENS: int(4, 128, 16).refine(
    (value) => Number.isInteger(Math.log2(value)),
    "must be a power of two",
  ),
  SPANGATE_THREADS: int(1, 256, Math.max(1, navigator.hardwareConcurrency)),
  SPANGATE_STEP_TOKENS: number(16, 65_536).optional(),
  SPANGATE_MAX_PREFILL_BESIDE_DECODE: number(1, 65_536).optional(),
  SPANGATE_MAX_RUNNING: int(1, 1_024, 64),
  SPANGATE_MAX_WAITING: int(0, 100_000, 1_024),
  SPANGATE_ISA: z
    .enum(["amx", "avx512", "avx2", "reference"], { error: 'must be "amx", "avx512", "avx2" or "reference"' })
    .optional(),
  SPANGATE_DEBUG: z.enum(["0", "1"], { error: 'must be "0" or "1"' }).default("0"),
});

/**
 * A step's rows, and prompt rows in a step that others decode in: a GPU works well on some thousands at once, a CPU
 * keeps everybody waiting with as many.
 */
const stepDefaults = {
  cpu: { stepTokens: 512, besideDecodes: 128 },
  cuda: { stepTokens: 8_192, besideDecodes: 1_024 },
} as const;

export interface WorkerConfig {
  /** Index of the CUDA device; undefined: the CPU. */
  readonly cudaIndex: number | undefined;
  readonly modelFolder: string;
  readonly modelName: string;
  readonly weightMode: "float32" | "int8";
  /** What multiplies on the CPU: onnxruntime, or products of our own; undefined: what is faster on its instruction set. */
  readonly dense: "onnx" | "native" | undefined;
  /** On a GPU anything but mx8 is bfloat16. mx8: rounded to 8 bits and a power of two for each 32 (kernels/abi.h). */
  readonly kvType: "float32" | "float16" | "mx8";
  /** Whether q is rotated to where a span stands, or K moved there (relocation/relocation.ts). */
  readonly kvPositions: "deferred" | "relocate";
  /** undefined: what the device has free. */
  readonly kvBytes: number | undefined;
  /** Page-locked memory of the host for KV beside a GPU's pool; 0: none. */
  readonly hostKvBytes: number;
  readonly blockTokens: number;
  readonly threadCount: number;
  readonly stepTokens: number;
  readonly prefillTokensBesideDecodes: number;
  readonly maxRunningRequests: number;
  readonly maxWaitingRequests: number;
  readonly isa: "amx" | "avx512" | "avx2" | "reference" | undefined;
  /** Rows of answers over long contexts choose what they read; undefined: they read all they see. */
  readonly sparse: SparseConfig | undefined;
  /** Whether the engine derives its bookkeeping anew after each step and compares (engine/invariants.ts). */
  readonly checksInvariants: boolean;
}

export interface SparseConfig {
  /** What rows do unless their request says otherwise; "ahead" allows both modes. */
  readonly mode: ServedMode;
  /** Tokens that a row chooses, and the most that a request may ask for. */
  readonly tokens: number;
  /** The most that a row can choose, forced ones with them. */
  readonly listTokens: number;
  /** Requests of fewer tokens, prompt and answer, read all of them. */
  readonly fromTokens: number;
  readonly shadowBits: 4;
}

/** A setting that the worker cannot run with. */
export class WorkerSettingError extends Error {
  /** The environment's variable. */
  readonly variable: string;
  /** What is wrong, as it stands after the setting's name. */
  readonly problem: string;

  constructor(variable: string, problem: string) {
    super(`${variable}: ${problem}`);
    this.variable = variable;
    this.problem = problem;
  }
}

/** A GPU computes in bfloat16 and holds KV in it, whatever else is asked for. @throws WorkerSettingError */
function refuseOnCuda(values: z.infer<typeof schema>): void {
  if (values.SPANGATE_WEIGHTS === "int8") {
    throw new WorkerSettingError(
      "SPANGATE_WEIGHTS",
      `int8 is for the CPU: ${values.SPANGATE_DEVICE} takes weights in bfloat16; leave it out, or take the device cpu`,
    );
  }
  if (values.SPANGATE_KV_TYPE !== undefined) {
    throw new WorkerSettingError(
      "SPANGATE_KV_TYPE",
      `${values.SPANGATE_KV_TYPE} is for the CPU: ${values.SPANGATE_DEVICE} holds KV in bfloat16; leave it out`,
    );
  }
}

/** @throws WorkerSettingError */
function refuseOnCpu(values: z.infer<typeof schema>): void {
  if (values.SPANGATE_KV_HOST_BYTES === 0) return;
  const instead = "the CPU's pool is the host's memory itself: leave it out, and set SPANGATE_KV_BYTES";
  throw new WorkerSettingError("SPANGATE_KV_HOST_BYTES", `is for GPUs; ${instead}`);
}

/** What mx8 does not go with. @throws WorkerSettingError */
function refuseWithMx8(values: z.infer<typeof schema>): void {
  const refused = (problem: string) => new WorkerSettingError("SPANGATE_KV_CODEC", `mx8 ${problem}`);
  if (values.SPANGATE_DEVICE !== "cpu" && values.SPANGATE_BLOCK_TOKENS < mx8BlockTokens) {
    const least = `takes SPANGATE_BLOCK_TOKENS of ${mx8BlockTokens} or more on ${values.SPANGATE_DEVICE}`;
    throw refused(`${least}, not ${values.SPANGATE_BLOCK_TOKENS}; leave one of them out`);
  }
  if (values.SPANGATE_KV_TYPE !== undefined) {
    throw refused(`takes the place of SPANGATE_KV_TYPE, which is ${values.SPANGATE_KV_TYPE}; leave one of them out`);
  }
  if (values.SPANGATE_KV_POSITIONS === "relocate") {
    const why = "does not go with SPANGATE_KV_POSITIONS relocate, which would round K again at each move";
    throw refused(`${why}; leave one of them out`);
  }
}

/** What rows that choose do not go with. @throws WorkerSettingError */
function refuseWithSparse(values: z.infer<typeof schema>): void {
  const refused = (problem: string) =>
    new WorkerSettingError("SPANGATE_SPARSE", `${values.SPANGATE_SPARSE} ${problem}`);
  const { SPANGATE_SPARSE: mode, SPANGATE_DEVICE: device, SPANGATE_BLOCK_TOKENS: blockTokens } = values;
  if (values.SPANGATE_KV_POSITIONS === "relocate") {
    throw refused("does not go with SPANGATE_KV_POSITIONS relocate, which moves K; leave one of them out");
  }
  if (blockTokens < leastChoiceBlock) {
    throw refused(
      `takes SPANGATE_BLOCK_TOKENS of ${leastChoiceBlock} or more, not ${blockTokens}; leave one of them out`,
    );
  }
  if (device === "cpu") return;
  if (mode === "ahead") {
    throw refused(`is for the CPU: on ${device} a row chooses by its own query alone; take now`);
  }
  if (values.SPANGATE_KV_CODEC === "mx8") {
    throw refused(
      `does not go with SPANGATE_KV_CODEC mx8 on ${device}, which chooses over bfloat16; leave one of them out`,
    );
  }
}

/** Tokens of a block, at least, that rows choose from. */
const leastChoiceBlock = 16;
/** On a GPU (kernels/cuda/sparse): heads are multiples of `headPart`; query heads of a KV head, and tokens of a context, at most. */
const gpuChoices = { headPart: 32, group: 16, contextTokens: 524_288 } as const;

/** What of a model decides whether its rows can choose (model/config.ts). */
export interface ChoosableModel {
  readonly headDim: number;
  readonly headCount: number;
  readonly kvHeadCount: number;
  readonly contextTokens: number;
  readonly window?: object | undefined;
  readonly scoreCap?: number | undefined;
  readonly sinks?: boolean | undefined;
}

/** @throws WorkerSettingError naming what of the model has no choices on this device */
export function assertSparseFits({ sparse, cudaIndex }: WorkerConfig, model: ChoosableModel): void {
  if (sparse === undefined) return;
  const { headDim, headCount, kvHeadCount, contextTokens } = model;
  const { headPart, group, contextTokens: mostTokens } = gpuChoices;
  const onGpu = cudaIndex !== undefined;
  const reasons: readonly (readonly [isSo: boolean, what: string])[] = [
    [model.window !== undefined, "the model has layers of a sliding window, which read little as they are"],
    [model.scoreCap !== undefined, "the model caps its attention scores"],
    [model.sinks === true, "the model has attention sinks"],
    [onGpu && headDim % headPart !== 0, `a GPU takes heads of a multiple of ${headPart} dimensions, not ${headDim}`],
    [onGpu && headCount > group * kvHeadCount, `a GPU takes up to ${group} query heads of a KV head`],
    [onGpu && contextTokens > mostTokens, `a GPU takes contexts of up to ${mostTokens} tokens, not ${contextTokens}`],
  ];
  const reason = reasons.find(([isSo]) => isSo);
  if (reason) throw new WorkerSettingError("SPANGATE_SPARSE", `${sparse.mode}: ${reason[1]}; leave it out`);
}

/** What a backend is told of rows that choose; undefined: none does, and it keeps nothing for them. */
export function sparseOptionsOf({ sparse, maxRunningRequests: seats }: WorkerConfig) {
  if (sparse === undefined) return undefined;
  const { listTokens, shadowBits, mode } = sparse;
  return { seats, listTokens, shadowBits, rings: mode === "ahead" };
}

/** A GPU has mx8 in parts of so many tokens (kernels/cuda/mx8.cuh), and reads it in heads of so many dimensions. */
const mx8BlockTokens = 16;
const mx8GpuHeads: readonly number[] = [64, 128];

/** @throws WorkerSettingError when KV of this many dimensions a head cannot be held as the configuration has it */
export function assertHeadFits({ kvType, cudaIndex }: WorkerConfig, headDim: number): void {
  if (kvType !== "mx8") return;
  if (cudaIndex !== undefined) {
    if (mx8GpuHeads.includes(headDim)) return;
    const takes = `mx8 takes heads of ${mx8GpuHeads.join(" or ")} dimensions on a GPU`;
    throw new WorkerSettingError("SPANGATE_KV_CODEC", `${takes}, and the model's have ${headDim}; leave it out`);
  }
  if (headDim % mx8Group === 0) return;
  throw new WorkerSettingError(
    "SPANGATE_KV_CODEC",
    `mx8 takes heads of a multiple of ${mx8Group} dimensions, and the model's have ${headDim}; leave it out`,
  );
}

/** @throws WorkerSettingError naming the variable. */
export function parseWorkerConfig(env: Record<string, string | undefined>): WorkerConfig {
  const parsed = schema.safeParse(env);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    throw new WorkerSettingError(String(issue?.path[0]), issue?.message ?? "is not as expected");
  }
  const values = parsed.data;
  const cudaIndex = values.SPANGATE_DEVICE === "cpu" ? undefined : Number(values.SPANGATE_DEVICE.slice("cuda:".length));
  if (cudaIndex !== undefined) refuseOnCuda(values);
  else refuseOnCpu(values);
  const isMx8 = values.SPANGATE_KV_CODEC === "mx8";
  if (isMx8) refuseWithMx8(values);
  const sparse = sparseConfigOf(values);
  const defaults = stepDefaults[cudaIndex === undefined ? "cpu" : "cuda"];
  const stepTokens = values.SPANGATE_STEP_TOKENS ?? defaults.stepTokens;
  if (stepTokens < values.SPANGATE_MAX_RUNNING) {
    const running = `SPANGATE_MAX_RUNNING (${values.SPANGATE_MAX_RUNNING}): each running request takes a row`;
    throw new WorkerSettingError("SPANGATE_STEP_TOKENS", `${stepTokens} is below ${running}`);
  }
  return Object.freeze({
    cudaIndex,
    modelFolder: values.SPANGATE_MODEL,
    modelName: values.SPANGATE_MODEL_NAME,
    weightMode: values.SPANGATE_WEIGHTS,
    dense: values.SPANGATE_DENSE,
    kvType: isMx8 ? "mx8" : (values.SPANGATE_KV_TYPE ?? "float16"),
    kvPositions: values.SPANGATE_KV_POSITIONS,
    kvBytes: values.SPANGATE_KV_BYTES,
    hostKvBytes: values.SPANGATE_KV_HOST_BYTES,
    blockTokens: values.SPANGATE_BLOCK_TOKENS,
    threadCount: values.SPANGATE_THREADS,
    stepTokens,
    prefillTokensBesideDecodes: values.SPANGATE_MAX_PREFILL_BESIDE_DECODE ?? defaults.besideDecodes,
    maxRunningRequests: values.SPANGATE_MAX_RUNNING,
    maxWaitingRequests: values.SPANGATE_MAX_WAITING,
    isa: values.SPANGATE_ISA,
    sparse,
    checksInvariants: values.SPANGATE_DEBUG === "1",
  });
}

/** Forced tokens of so many spans fit beside what is chosen; a request of more spans reads all it sees. */
const mostForcedSpans = 512;

function sparseConfigOf(values: z.infer<typeof schema>): SparseConfig | undefined {
  const { SPANGATE_SPARSE: mode, SPANGATE_SPARSE_TOKENS: tokens, SPANGATE_SPARSE_FROM: fromTokens } = values;
  if (mode === "off") return undefined;
  refuseWithSparse(values);
  const listTokens = tokens + forcedTokens.prompt + forcedTokens.span * mostForcedSpans;
  return { mode, tokens, listTokens, fromTokens, shadowBits: 4 };
}
