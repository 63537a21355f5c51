/**
 * What sixteen streams of tokens feel of somebody else's question over 32 documents: times from
 * token to token while the documents lie in the pool and while they come up from the host's memory.
 *
 * One step in 25 computes the other's question. It takes half as long again as the other 24, so the 99th percentile of
 * all steps lies among those that have a question. Windows of the two kinds alternate (one, two, two, one), each after a
 * collection of garbage; the percentiles of all steps of either kind are compared, and the interval is that of drawing
 * rounds anew. The reference is compared with itself in the same way: what a ratio of nothing scatters by. A question's
 * message is made before the clock starts, as the gateway makes it for a worker; taking it is in the times.
 *
 * Documents come up for the first steps behind a question only, so these are compared by themselves too, and so are the
 * steps without a question, whose times nothing but loading can lengthen.
 */
import type { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import { Random } from "../native/random.ts";
import { BenchEngine, median, type StepTimes } from "./bench-engine.ts";
import { gpuOptions, resultPath } from "./options.ts";
import { assertThat, type Report } from "./report.ts";

const [streams, streamPrompt, questionTokens, documentTokens, documentCount] = [16, 256, 32, 512, 32];
const [roundCount, windowSteps, stepsAQuestion] = [20, 300, 25];
/** Behind a question; by then its documents are there. */
const loadingSteps = 12;
const streamTokens = 400;
const kinds = ["resident", "loading"] as const;
type Kind = (typeof kinds)[number];

interface Window {
  readonly all: readonly StepTimes[];
  readonly p99Ms: number;
}

/** Steps of the streams alone have a row for each. */
const hasQuestion = ({ rows }: StepTimes): boolean => rows > streams;

const percentile = (values: readonly number[], part: number): number =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(part * values.length))] ?? Number.NaN;

const wallOf = (steps: readonly StepTimes[]): number[] => steps.map(({ wallMs }) => wallMs);
const deviceOf = (steps: readonly StepTimes[]): number[] => steps.map(({ deviceMs }) => deviceMs);

class Asker {
  readonly engine: BenchEngine;
  readonly #sets: readonly (readonly Int32Array[])[];
  #asked = 0;

  constructor(engine: BenchEngine) {
    this.engine = engine;
    const documents = () => Array.from({ length: documentCount }, () => engine.randomTokens(documentTokens));
    // The pool holds two sets beside the streams, so that of the last three the one that was asked for longest ago has left.
    this.#sets = Array.from({ length: 4 }, documents);
  }

  async warmUp(): Promise<void> {
    for (const set of this.#sets) {
      this.engine.submitPlanned(this.#plan(set));
      await this.engine.settle();
    }
    await this.engine.hostSettled();
  }

  question(kind: Kind): SubmitMessage {
    const [resident = [], ...others] = this.#sets;
    return this.#plan(kind === "resident" ? resident : (others[this.#asked++ % others.length] ?? []));
  }

  async window(kind: Kind): Promise<Window> {
    for (let i = 0; i < streams; i++)
      this.engine.submit([], this.engine.randomTokens(streamPrompt), streamTokens, false);
    for (let step = 0; step < 20; step++) await this.engine.step();
    Bun.gc(true);
    const all: StepTimes[] = [];
    // The first question brings the documents up in windows of either kind, and is not counted.
    for (let step = -2 * stepsAQuestion; step < windowSteps; step++) {
      const question = step % stepsAQuestion === 0 ? this.question(kind) : undefined;
      const beganMs = performance.now();
      if (question !== undefined) this.engine.submitPlanned(question);
      const times = await this.engine.step();
      // From token to token, so with what the engine does to take the question.
      if (step >= 0 && times !== undefined) all.push({ ...times, wallMs: performance.now() - beganMs });
    }
    await this.engine.settle();
    return { all, p99Ms: percentile(wallOf(all), 0.99) };
  }

  #plan(documents: readonly Int32Array[]): SubmitMessage {
    return this.engine.plan(documents, this.engine.randomTokens(questionTokens), 1, true);
  }
}

type Round = Readonly<Record<Kind, readonly [first: Window, second: Window]>>;

/** The statistic of all rounds, and the middle 95 % of what it is of rounds drawn from these with repetition. */
function interval(report: Report, name: string, rounds: readonly Round[], of: (rounds: readonly Round[]) => number) {
  const random = new Random(1);
  const drawn = Array.from({ length: 500 }, () => of(rounds.map(() => random.pick(rounds))));
  return [
    report.figure(name, of(rounds)),
    report.figure(`${name}Low`, percentile(drawn, 0.025)),
    report.figure(`${name}High`, percentile(drawn, 0.975)),
  ].join(", ");
}

const medianP99 = (windows: readonly Window[]): number => median(windows.map(({ p99Ms }) => p99Ms));
const stepsOf = (windows: readonly Window[]): StepTimes[] => windows.flatMap(({ all }) => all);
const whileLoading = (windows: readonly Window[]): StepTimes[] =>
  windows.flatMap(({ all }) => all.filter((_, index) => index % stepsAQuestion < loadingSteps));
const p99Of = (steps: readonly StepTimes[]): number => percentile(wallOf(steps), 0.99);

/** What of a kind's windows is compared with the same of the other kind's. */
const statistics: readonly (readonly [name: string, of: (windows: readonly Window[]) => number])[] = [
  ["p99", (windows) => p99Of(stepsOf(windows))],
  ["p99OfWindows", medianP99],
  ["whileLoading.p99", (windows) => p99Of(whileLoading(windows))],
  ["plain.p99", (windows) => p99Of(stepsOf(windows).filter((step) => !hasQuestion(step)))],
];

const windowsOf = (rounds: readonly Round[], kind: Kind): Window[] => rounds.flatMap((round) => round[kind]);

function ratios(report: Report, rounds: readonly Round[]): string[] {
  return statistics.flatMap(([name, of]) => [
    interval(report, `beside.${name}Ratio`, rounds, (drawn) => {
      return of(windowsOf(drawn, "loading")) / of(windowsOf(drawn, "resident"));
    }),
    interval(report, `beside.${name}ResidentRatio`, rounds, (drawn) => {
      return of(drawn.map(({ resident }) => resident[1])) / of(drawn.map(({ resident }) => resident[0]));
    }),
  ]);
}

/** Every step, for whoever asks what a percentile is made of. */
async function keepSteps(rounds: readonly Round[]): Promise<void> {
  const path = resultPath(gpuOptions(), "gpu-beside-steps.json");
  if (path === undefined) return;
  const kept = ({ all }: Window) =>
    all.map(({ wallMs, deviceMs, rows }) => [wallMs, deviceMs].map(rounded).concat(rows));
  const rounded = (ms: number): number => Math.round(1_000 * ms) / 1_000;
  await Bun.write(
    path,
    JSON.stringify(
      rounds.map(({ resident, loading }) => ({ resident: resident.map(kept), loading: loading.map(kept) })),
    ),
  );
}

export async function benchBeside(report: Report, backend: CudaBackend, device: CudaDevice): Promise<string> {
  const asker = new Asker(new BenchEngine(backend, device, 8_192, backend.hostBlocks));
  await asker.warmUp();
  const rounds: Round[] = [];
  for (let round = -1; round < roundCount; round++) {
    const first = await asker.window("resident");
    const loading = [await asker.window("loading"), await asker.window("loading")] as const;
    const resident = [first, await asker.window("resident")] as const;
    if (round >= 0) rounds.push({ resident, loading });
  }
  await asker.engine.hostSettled();
  await keepSteps(rounds);
  const lines = kinds.flatMap((kind) => figuresOf(report, kind, windowsOf(rounds, kind)));
  const [resident, loading] = kinds.map((kind) => shareOfQuestions(windowsOf(rounds, kind)));
  assertThat(loading < 1.5 * resident, `${loading} of the steps beside loads compute something: not all was loaded`);
  return [...lines, ...ratios(report, rounds)].join(", ");
}

const shareOfQuestions = (windows: readonly Window[]): number => {
  const all = stepsOf(windows);
  return all.filter(hasQuestion).length / all.length;
};

function figuresOf(report: Report, kind: Kind, windows: readonly Window[]): string[] {
  const all = stepsOf(windows);
  const [asked, plain] = [all.filter(hasQuestion), all.filter((step) => !hasQuestion(step))];
  const of = (name: string, value: number): string => report.figure(`beside.${kind}.${name}`, value);
  return [
    ...[50, 90, 95, 97, 98, 99].map((part) => of(`p${part}Ms`, percentile(wallOf(all), part / 100))),
    of("p99OfWindowsMs", medianP99(windows)),
    of("p99BestMs", Math.min(...windows.map(({ p99Ms }) => p99Ms))),
    of("p99WorstMs", Math.max(...windows.map(({ p99Ms }) => p99Ms))),
    of("whileLoading.p99Ms", p99Of(whileLoading(windows))),
    of("plain.p99Ms", percentile(wallOf(plain), 0.99)),
    of("plain.deviceP99Ms", percentile(deviceOf(plain), 0.99)),
    of("question.share", shareOfQuestions(windows)),
    of("question.p50Ms", percentile(wallOf(asked), 0.5)),
    of("question.p90Ms", percentile(wallOf(asked), 0.9)),
    of("question.deviceP50Ms", percentile(deviceOf(asked), 0.5)),
    of("question.deviceP90Ms", percentile(deviceOf(asked), 0.9)),
  ];
}
