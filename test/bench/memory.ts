/** Resident memory of the gateway and one worker with the demo model after real questions, less the KV pool's pages. */
import { readFileSync } from "node:fs";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { askChat } from "../../gateway/cli/support/operations.ts";
import { firstWorkerOf } from "../support/operator.ts";
import { startTestServer } from "../support/server.ts";
import { atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { mapConcurrent } from "./support/concurrent.ts";
import { evalRequest, readEvalQuestions } from "./support/eval-sets.ts";
import { figure } from "./support/stats.ts";

const mebibyte = 2 ** 20;
const questionCount = 200;

function residentBytes(pid: number): number {
  const [, kibibytes] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
  if (kibibytes === undefined) throw new CommandError(`the system does not tell the resident memory of process ${pid}`);
  return Number(kibibytes) * 1_024;
}

async function run({ say }: BenchContext): Promise<BenchReport> {
  if (process.platform !== "linux") throw new CommandError("this benchmark reads /proc, which only Linux has");
  await using server = await startTestServer();
  const { client } = await server.tenant("bench");
  const all = readEvalQuestions(["facts-1", "facts-12", "needles-2k"]);
  const questions = all.filter((_, index) => index % Math.max(1, Math.floor(all.length / questionCount)) === 0);
  say(`${questions.length} questions`);
  await mapConcurrent(questions, 16, (question) => askChat(client, evalRequest(question, server.model)));
  // The worker tells its counters every second or so.
  await Bun.sleep(3_000);
  const { pid, stats } = await firstWorkerOf(server);
  if (pid === null || stats === null) throw new CommandError("the server does not tell the worker's pid and pool");
  const bytes = { gateway: residentBytes(server.process.pid), worker: residentBytes(pid) };
  const pool = stats.residentBytes;
  const total = bytes.gateway + bytes.worker - pool;
  return {
    model: server.model,
    header: ["resident", "MiB"],
    rows: [
      ["gateway", figure(bytes.gateway / mebibyte)],
      ["worker", figure(bytes.worker / mebibyte)],
      ["KV pool's touched pages (in the worker)", figure(pool / mebibyte)],
      ["gateway and worker without the pool", figure(total / mebibyte)],
    ],
    notes: [`After ${questions.length} questions, 16 at a time.`],
    bars: [atMost("gateway and one worker without the KV pool, MB", total / 1e6, 500)],
  };
}

export const memoryBench: Bench = {
  name: "memory",
  summary: "Resident memory of gateway and one worker with the demo model, without the KV pool",
  run,
};
