/**
 * Our engine against llama.cpp with the same weights at 8 bits and the same threads, in turn, in one run: prefill of
 * a prompt, then decode after it. One request at a time, nothing reused.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { type Isa, openCpuKernels } from "../../worker/native/cpu-kernels.ts";
import { atLeast, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { LlamaPeer, type Throughput } from "./support/peer.ts";
import { expertShape, qwen3Shape, type RandomShape, writeRandomModel } from "./support/random-model.ts";
import { figure, median } from "./support/stats.ts";
import { type BenchWorker, chainPlan, greedyParams, startWorker } from "./support/worker.ts";

const lengths = [512, 2_048];
/** Run first by both sides in every round and not counted: one has just started, the other slept meanwhile. */
const warmUpLength = 64;
const decodeTokens = 64;
const threadCount = 2;
const rounds = 3;

interface Subject {
  readonly name: string;
  /** A model's folder, or the shape of one with random weights. */
  readonly folder?: string;
  readonly shape?: RandomShape;
  /** Least ratios to llama.cpp: of prefill, and of decode after each of `lengths`. */
  readonly prefillBound: number;
  readonly decodeBounds: readonly [number, number];
}

type Say = BenchContext["say"];

interface Row {
  readonly name: string;
  readonly length: number;
  readonly ours: Throughput;
  readonly peer: Throughput;
}

async function measureOurs(worker: BenchWorker, length: number): Promise<Throughput> {
  const tokenIds = Int32Array.from({ length }, (_, index) => (index * 7_919) % 4_000);
  const startMs = performance.now();
  const { arrivals } = await worker.generate(chainPlan(tokenIds, worker.card), greedyParams(decodeTokens + 1), false);
  const [first, last] = [arrivals[0]?.atMs, arrivals.at(-1)?.atMs];
  const decoded = arrivals.slice(1).reduce((sum, { count }) => sum + count, 0);
  if (first === undefined || last === undefined || decoded === 0) throw new CommandError("the worker sent no tokens");
  return {
    length,
    prefillTokensPerSecond: (length / (first - startMs)) * 1_000,
    decodeTokensPerSecond: (decoded / (last - first)) * 1_000,
  };
}

function medians(samples: readonly Throughput[], length: number): Throughput {
  const ofLength = samples.filter((sample) => sample.length === length);
  return {
    length,
    prefillTokensPerSecond: median(ofLength.map((sample) => sample.prefillTokensPerSecond)),
    decodeTokensPerSecond: median(ofLength.map((sample) => sample.decodeTokensPerSecond)),
  };
}

/** @param scratch folder for a model's files, which are gone afterwards */
async function measureSubject(subject: Subject, scratch: string, peer: LlamaPeer, say: Say): Promise<Row[]> {
  const own = mkdtempSync(join(scratch, "model-"));
  try {
    if (subject.shape !== undefined) {
      say(`${subject.name}: writing random weights`);
      writeRandomModel(own, subject.shape);
    }
    const ggufPath = join(own, "model.gguf");
    const modelFolder = subject.folder ?? own;
    await peer.convert(modelFolder, ggufPath);
    return await measureBoth(subject, modelFolder, ggufPath, peer, say);
  } finally {
    rmSync(own, { recursive: true, force: true });
  }
}

async function measureBoth(
  subject: Subject,
  modelFolder: string,
  ggufPath: string,
  peer: LlamaPeer,
  say: Say,
): Promise<Row[]> {
  const worker = await startWorker({
    SPANGATE_MODEL: modelFolder,
    SPANGATE_WEIGHTS: "int8",
    // llama.cpp keeps its KV in 16 bits too.
    SPANGATE_KV_TYPE: "float16",
    SPANGATE_THREADS: String(threadCount),
  });
  const [ours, theirs]: [Throughput[], Throughput[]] = [[], []];
  try {
    for (const length of lengths) await measureOurs(worker, length);
    const warmLengths = [warmUpLength, ...lengths];
    for (let round = 1; round <= rounds; round++) {
      say(`${subject.name}, round ${round} of ${rounds}`);
      for (const length of warmLengths) ours.push(await measureOurs(worker, length));
      theirs.push(...(await peer.measure(ggufPath, warmLengths, threadCount)));
    }
  } finally {
    await worker.stop();
  }
  return lengths.map((length) => ({
    name: subject.name,
    length,
    ours: medians(ours, length),
    peer: medians(theirs, length),
  }));
}

/** Units for matrices make more of a prompt than those for vectors. */
async function densePrefillBound(): Promise<number> {
  const kernels = await openCpuKernels({ isa: process.env.SPANGATE_ISA as Isa | undefined, threadCount: 1 });
  const { isa } = kernels;
  kernels.close();
  return isa === "amx" ? 4 : 1.5;
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const peer = await LlamaPeer.open(option("tools") ?? process.env.SPANGATE_PEER_TOOLS);
  const folder = mkdtempSync(join(tmpdir(), "spangate-llama-"));
  const known: Subject[] = [
    { name: "random 0.6B Qwen3", shape: qwen3Shape, prefillBound: await densePrefillBound(), decodeBounds: [1.3, 2] },
    { name: "demo model", folder: demoModelFolder, prefillBound: 1, decodeBounds: [5, 5] },
    { name: "random 1.5B Qwen3-MoE, 0.3B active", shape: expertShape, prefillBound: 1.3, decodeBounds: [1.2, 1.2] },
  ];
  const subjects = known.filter(({ shape }) => shape?.experts === undefined || peer.writesExperts);
  const leftOut = known.filter((subject) => !subjects.includes(subject)).map(({ name }) => name);
  const rows: Row[] = [];
  try {
    for (const subject of subjects) rows.push(...(await measureSubject(subject, folder, peer, say)));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  const ratio = (row: Row, field: "prefillTokensPerSecond" | "decodeTokensPerSecond") =>
    row.ours[field] / row.peer[field];
  return {
    model: subjects.map(({ name }) => name).join(", "),
    header: ["model", "prompt", "prefill/s", "llama.cpp", "ratio", "decode/s", "llama.cpp", "ratio"],
    rows: rows.map((row) => [
      row.name,
      String(row.length),
      figure(row.ours.prefillTokensPerSecond),
      figure(row.peer.prefillTokensPerSecond),
      figure(ratio(row, "prefillTokensPerSecond")),
      figure(row.ours.decodeTokensPerSecond),
      figure(row.peer.decodeTokensPerSecond),
      figure(ratio(row, "decodeTokensPerSecond")),
    ]),
    notes: [
      `Medians of ${rounds} rounds in turn; 8-bit weights and 16-bit KV on both sides, ${threadCount} threads, ${decodeTokens} decoded tokens.`,
      ...leftOut.map((name) => `Left out: ${name}, which gguf.py of the tools does not write.`),
    ],
    bars: subjects.flatMap(({ name, prefillBound, decodeBounds }) =>
      rows
        .filter((row) => row.name === name)
        .flatMap((row, index) => [
          atLeast(`${name}: prefill ${row.length}`, ratio(row, "prefillTokensPerSecond"), prefillBound),
          atLeast(`${name}: decode after ${row.length}`, ratio(row, "decodeTokensPerSecond"), decodeBounds[index] ?? 1),
        ]),
    ),
  };
}

export const llamaBench: Bench = {
  name: "llama",
  summary: "Prefill and decode against llama.cpp with the same weights at 8 bits, in turn",
  options: { tools: "DIR  folder of gguf.py and llama-bench.mjs (SPANGATE_PEER_TOOLS)" },
  run,
};
