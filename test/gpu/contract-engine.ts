/**
 * The contract through the engine: requests that are preempted, blended, prefilled beside others, sampled in every way and
 * begun ahead, each of the backend's calls against the same in plain loops (twin-backend.ts). Runs on any two backends.
 */
import type { Backend } from "../../worker/backend/backend.ts";
import type { SamplingParams, SubmitMessage, WorkerMessage, WorkerStats } from "../../worker/contract/messages.ts";
import type { EngineLimits } from "../../worker/engine/limits.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { type BlendPart, blendRuns, blockTokens, countUp, submitPlan, submitRuns } from "../engine/plans.ts";
import { assertThat } from "./report.ts";
import { PipelinedTwin, TwinBackend } from "./twin-backend.ts";

export interface PoolSize {
  readonly blockCount: number;
  readonly blockTokens: number;
}

export interface ContractSides {
  /** The backend under test, with so many blocks. */
  openDevice(size: PoolSize, graphs: boolean): Promise<Backend>;
  openLoops(size: PoolSize): Promise<Backend>;
}

interface Ran {
  readonly messages: readonly WorkerMessage[];
  readonly stats: WorkerStats;
}

/** Rows of a step, and of those that want logits, that the sides must take. */
export const contractRows = { maxRows: 256, maxLogitRows: 8 } as const;
const limits: Partial<EngineLimits> = {
  stepTokens: 64,
  prefillTokensBesideDecodes: 16,
  maxRunningRequests: contractRows.maxLogitRows,
  maxWaitingRequests: 64,
};
const manyBlocks = 96;

async function run(backend: Backend, submits: readonly SubmitMessage[], change: Partial<EngineLimits> = {}) {
  const messages: WorkerMessage[] = [];
  const engine = new Engine({
    backend,
    eosTokenIds: [],
    limits: { ...limits, ...change },
    clock: () => performance.now(),
    emit: (message) => messages.push(message),
    debug: true,
  });
  for (const message of submits) engine.submit(message);
  while (await engine.step());
  const failed = messages.find((message) => message.type === "failed");
  assertThat(failed === undefined, `a request failed: ${failed?.type === "failed" ? failed.message : ""}`);
  const stats = engine.stats();
  assertThat(stats.usedBlocks === 0, `${stats.usedBlocks} blocks are still in use`);
  return { messages, stats } satisfies Ran;
}

function tokensOf({ messages }: Ran, requestId: string): number[] {
  return messages.flatMap((m) => (m.type === "tokens" && m.requestId === requestId ? m.tokenIds : []));
}

/** A prompt of so many tokens that no other request shares. */
function plain(name: string, from: number, promptTokens: number, maxTokens: number, sampling = {}): SubmitMessage {
  const parts = { system: countUp(from, promptTokens - 3), question: countUp(from + 50, 3) };
  return submitPlan(name, parts, { params: { maxTokens, ignoreEos: true }, sampling });
}

type Use = (twin: TwinBackend) => Promise<string>;

async function withTwin(sides: ContractSides, blockCount: number, use: Use, Twin = TwinBackend): Promise<string> {
  const size = { blockCount, blockTokens };
  const twin = new Twin(await sides.openDevice(size, true), await sides.openLoops(size));
  try {
    return `${await use(twin)}; ${JSON.stringify(twin.seen)}, logits off by ${twin.worstLogit.toFixed(3)} at most`;
  } finally {
    await twin.dispose();
  }
}

/** Requests that outgrow the pool together: some are thrown out in the middle and computed again. */
const outgrow: Use = async (twin) => {
  const submits = [1, 2, 3, 4].map((n) => plain(`r${n}`, 20 * n, 17 + n, 24));
  const ran = await run(twin, submits);
  for (const { requestId } of submits) {
    const { length } = tokensOf(ran, requestId);
    assertThat(length === 24, `${requestId}: ${length} tokens of 24`);
  }
  assertThat(ran.stats.preemptions > 0, "no request was preempted");
  return `${ran.stats.preemptions} preemptions`;
};

function checkPreemption(sides: ContractSides): Promise<string> {
  return withTwin(sides, 24, outgrow);
}

/** The same, each step begun while the one before runs. */
function checkStepsAhead(sides: ContractSides): Promise<string> {
  const use: Use = async (twin) => {
    const words = await outgrow(twin);
    assertThat(twin.seen.rowsAhead > 40, `${twin.seen.rowsAhead} rows began before their token was known`);
    return words;
  };
  return withTwin(sides, 24, use, PipelinedTwin);
}

/** Prompts in chunks beside requests that decode, with shared fragments at other places. */
function checkMixedSteps(sides: ContractSides): Promise<string> {
  return withTwin(sides, manyBlocks, async (twin) => {
    const spans = [countUp(3, 22), countUp(31, 9)];
    const order = (n: number) => (n % 2 === 0 ? spans : spans.toReversed());
    const submits = [0, 1, 2, 3].map((n) =>
      submitPlan(
        `r${n}`,
        { system: countUp(60, 5), spans: order(n), question: countUp(10 * n, 6 + 9 * n) },
        { params: { maxTokens: 8, ignoreEos: true } },
      ),
    );
    const change = { stepTokens: 16, prefillTokensBesideDecodes: 5 };
    const ran = await run(twin, [plain("first", 70, 6, 30), ...submits], change);
    assertThat(twin.seen.mixedSteps > 4, `${twin.seen.mixedSteps} steps decode beside a chunk`);
    assertThat(ran.stats.hitTokens > 0, "no fragment was found");
    return `${ran.stats.hitTokens} tokens found`;
  });
}

/** Copied tokens, deviations, and the rows that are computed again. */
function checkBlending(sides: ContractSides): Promise<string> {
  return withTwin(sides, manyBlocks, async (twin) => {
    const texts: BlendPart[] = [
      { plain: countUp(1, 5) },
      { copied: countUp(20, 30) },
      { plain: countUp(80, 2) },
      { copied: countUp(40, 27) },
    ];
    const words: string[] = [];
    for (const recomputeRatio of [0, 0.2, 1]) {
      const runs = blendRuns(texts, { recomputeRatio, question: countUp(60, 7) });
      const name = `ratio ${recomputeRatio}`;
      const { messages } = await run(twin, [submitRuns(name, runs, { params: { maxTokens: 5, ignoreEos: true } })]);
      const finished = messages.find((message) => message.type === "finished");
      const blend = finished?.type === "finished" ? finished.blend : undefined;
      const expected = Math.ceil(recomputeRatio * 57);
      const isRight = blend?.copiedTokens === 57 && blend.recomputedTokens === expected;
      assertThat(isRight, `${name}: ${JSON.stringify(blend)}, not ${expected} of 57 tokens`);
      words.push(`${name}: ${blend?.recomputedTokens} computed again`);
    }
    assertThat(twin.seen.copies > 0 && twin.seen.probes > 0, "nothing was copied, or nothing probed");
    return words.join(", ");
  });
}

const samplings: Readonly<Record<string, Partial<SamplingParams>>> = {
  greedy: { topLogprobs: 5 },
  warm: { temperature: 0.7, seed: 1 },
  hot: { temperature: 2.5, seed: 2, topLogprobs: 0 },
  topK: { temperature: 1.1, topK: 7, seed: 3 },
  topKOne: { temperature: 1, topK: 1, seed: 4 },
  topP: { temperature: 1.3, topP: 0.6, seed: -5 },
  minP: { temperature: 1.5, minP: 0.2, seed: 2 ** 40 + 6 },
  allFilters: { temperature: 1.2, topK: 40, topP: 0.9, minP: 0.05, seed: 7, topLogprobs: 20 },
  presence: { temperature: 0.9, presencePenalty: 1.5, seed: 8 },
  frequency: { temperature: 0.9, frequencyPenalty: 0.8, seed: 9 },
  repetition: { repetitionPenalty: 1.7, topLogprobs: 2 },
  antiRepetition: { temperature: 0.8, repetitionPenalty: 0.6, seed: 10 },
  biased: {
    temperature: 1,
    seed: 11,
    logitBias: [
      [17, 4],
      [40, -100],
      [90, 3],
    ],
  },
  everything: {
    temperature: 1.4,
    topK: 50,
    topP: 0.95,
    minP: 0.01,
    presencePenalty: 0.4,
    frequencyPenalty: 0.3,
    repetitionPenalty: 1.2,
    seed: 2 ** 52 - 1,
    logitBias: [[5, 2.5]],
    topLogprobs: 3,
  },
};

/** Every parameter of sampling, several requests in one step; stop tokens are banned for the first tokens. */
function checkSampling(sides: ContractSides): Promise<string> {
  return withTwin(sides, manyBlocks, async (twin) => {
    const submits = Object.entries(samplings).map(([name, sampling], n) => {
      const message = plain(name, 7 * n, 9 + n, 12, sampling);
      return { ...message, params: { ...message.params, minTokens: 12, stopTokenIds: [3, 44, 120] } };
    });
    const ran = await run(twin, submits);
    for (const { requestId } of submits) {
      const { length } = tokensOf(ran, requestId);
      assertThat(length === 12, `${requestId}: ${length} tokens of 12`);
    }
    const logprobs = Object.values(samplings).filter(({ topLogprobs = -1 }) => topLogprobs >= 0).length * 12;
    assertThat(twin.seen.logprobs === logprobs, `${twin.seen.logprobs} log-probabilities of ${logprobs}`);
    return `${submits.length} requests`;
  });
}

/** Decode steps launched one by one and as graphs: the same tokens. Of two rows: one row has kernels of its own. */
async function checkLaunchModes(sides: ContractSides): Promise<string> {
  const size = { blockCount: manyBlocks, blockTokens };
  const sampling = { temperature: 0.8, topK: 30, seed: 12 };
  const submits = [5, 41].map((from) => plain(`r${from}`, from, 20, 40, sampling));
  const answers: string[] = [];
  for (const graphs of [true, false]) {
    const device = await sides.openDevice(size, graphs);
    const ran = await run(device, submits);
    answers.push(submits.map(({ requestId }) => tokensOf(ran, requestId).join(" ")).join(" | "));
    await device.dispose();
  }
  assertThat(answers[0] === answers[1], `graphs draw ${answers[0]}, launches ${answers[1]}`);
  return `${answers[0].split(" ").length - 1} tokens`;
}

export const engineChecks = {
  preemption: checkPreemption,
  "steps ahead": checkStepsAhead,
  "mixed steps": checkMixedSteps,
  blending: checkBlending,
  sampling: checkSampling,
  "launch modes": checkLaunchModes,
} as const;
