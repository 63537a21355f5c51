/**
 * The worker process on device 0 with the demo model: starts, answers, drains. `bun test/gpu/worker.ts WORKER_FILE`,
 * NVIDIA's libraries in the loader's path.
 */
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { SubmitMessage, WorkerMessage, WorkerMessages } from "../../worker/contract/messages.ts";
import { piped } from "../../worker/contract/piped-plan.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";

const [workerFile] = process.argv.slice(2);
const tokenIds = Int32Array.from({ length: 40 }, (_, i) => 20 + ((i * 7) % 300));
const root = rootKey("worker", "salt" as CacheSalt, "main");
const blockKeys = runBlockKeys(root, tokenIds, 16, false);
const run = { kind: "main" as const, tokenIds, position: 0, sees: [], blockKeys, rootKey: root };
const request: SubmitMessage = {
  type: "submit",
  requestId: "r",
  reuse: true,
  plan: { runs: [run] },
  params: { maxTokens: 24, minTokens: 0, ignoreEos: true, stopTokenIds: [], sampling: greedySampling },
};
const startMs = performance.now();
const child = Bun.spawn([process.execPath, workerFile], {
  env: { ...process.env, SPANGATE_MODEL: "worker/model/demo", SPANGATE_DEVICE: "cuda:0" },
  stdio: ["ignore", "inherit", "inherit"],
  serialization: "advanced",
  ipc: (messages: WorkerMessages) => {
    for (const message of messages) take(message);
  },
});
function take(message: WorkerMessage): void {
  const elapsedMs = Math.round(performance.now() - startMs);
  if (message.type !== "kv" && message.type !== "tokens") console.log(elapsedMs, JSON.stringify(message));
  if (message.type === "ready") child.send(piped(request));
  if (message.type === "finished" || message.type === "failed") child.send({ type: "drain" });
}
process.exit(await child.exited);
