/**
 * What sixteen streams of tokens feel of somebody else's question over 32 documents: times from
 * token to token while the documents lie in the pool and while they come up from the host's memory.
 *
 * One step in 25 computes the other's question. It takes half as long again as the other 24, so the 99th percentile of
 * all steps lies among the few that have a question, and every pause of the host moves it: on the device these steps
 * differ by a hundredth, and a window's percentile by half. So windows of the two kinds alternate (one, two, two, one), a
 * window counts with its own percentile, the medians of these are compared, and the interval is that of drawing rounds
 * anew. The reference is compared with itself in the same way: what a ratio of nothing scatters by.
 */
import type { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import { Random } from "../native/random.ts";
import { BenchEngine, median, type StepTimes } from "./bench-engine.ts";
import { assertThat, type Report } from "./report.ts";

const [streams, streamPrompt, questionTokens, documentTokens, documentCount] = [16, 256, 32, 512, 32];
const [roundCount, windowSteps, stepsAQuestion] = [6, 300, 25];
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
      this.#submit(set);
      await this.engine.settle();
    }
    await this.engine.hostSettled();
  }

  ask(kind: Kind): void {
    const [resident = [], ...others] = this.#sets;
    this.#submit(kind === "resident" ? resident : (others[this.#asked++ % others.length] ?? []));
  }

  async window(kind: Kind): Promise<Window> {
    for (let i = 0; i < streams; i++)
      this.engine.submit([], this.engine.randomTokens(streamPrompt), streamTokens, false);
    for (let step = 0; step < 20; step++) await this.engine.step();
    const all: StepTimes[] = [];
    // The first question brings the documents up in windows of either kind, and is not counted.
    for (let step = -2 * stepsAQuestion; step < windowSteps; step++) {
      const beganMs = performance.now();
      if (step % stepsAQuestion === 0) this.ask(kind);
      const times = await this.engine.step();
      // From token to token, so with what the engine does to take the question.
      if (step >= 0 && times !== undefined) all.push({ ...times, wallMs: performance.now() - beganMs });
    }
    await this.engine.settle();
    return { all, p99Ms: percentile(wallOf(all), 0.99) };
  }

  #submit(documents: readonly Int32Array[]): void {
    this.engine.submit(documents, this.engine.randomTokens(questionTokens), 1, true);
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
  const windowsOf = (kind: Kind, of: readonly Round[] = rounds): Window[] => of.flatMap((round) => round[kind]);
  const lines = kinds.flatMap((kind) => figuresOf(report, kind, windowsOf(kind)));
  const [resident, loading] = kinds.map((kind) => shareOfQuestions(windowsOf(kind)));
  assertThat(loading < 1.5 * resident, `${loading} of the steps beside loads compute something: not all was loaded`);
  return [
    ...lines,
    interval(report, "beside.p99Ratio", rounds, (of) => {
      return medianP99(windowsOf("loading", of)) / medianP99(windowsOf("resident", of));
    }),
    interval(report, "beside.residentRatio", rounds, (of) => {
      const [first, second] = [0, 1].map((index) => medianP99(of.map((round) => round.resident[index])));
      return second / first;
    }),
  ].join(", ");
}

const shareOfQuestions = (windows: readonly Window[]): number => {
  const all = windows.flatMap((window) => window.all);
  return all.filter(hasQuestion).length / all.length;
};

function figuresOf(report: Report, kind: Kind, windows: readonly Window[]): string[] {
  const all = windows.flatMap((window) => window.all);
  const [asked, plain] = [all.filter(hasQuestion), all.filter((step) => !hasQuestion(step))];
  const of = (name: string, value: number): string => report.figure(`beside.${kind}.${name}`, value);
  return [
    ...[0.5, 0.9, 0.99].map((part) => of(`p${100 * part}Ms`, percentile(wallOf(all), part))),
    of("p99OfWindowsMs", medianP99(windows)),
    of("p99BestMs", Math.min(...windows.map(({ p99Ms }) => p99Ms))),
    of("p99WorstMs", Math.max(...windows.map(({ p99Ms }) => p99Ms))),
    of("plain.p99Ms", percentile(wallOf(plain), 0.99)),
    of("plain.deviceP99Ms", percentile(deviceOf(plain), 0.99)),
    of("question.share", shareOfQuestions(windows)),
    of("question.p50Ms", percentile(wallOf(asked), 0.5)),
    of("question.p90Ms", percentile(wallOf(asked), 0.9)),
    of("question.deviceP50Ms", percentile(deviceOf(asked), 0.5)),
    of("question.deviceP90Ms", percentile(deviceOf(asked), 0.9)),
  ];
}
