/** The worker as a process: what it says when it starts, and that it does not outlive its gateway. */
import { expect, test } from "bun:test";
import { existsSync, writeFileSync } from "node:fs";
import { getPriority } from "node:os";
import { join } from "node:path";
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { SubmitMessage, WorkerMessage, WorkerMessages } from "../../worker/contract/messages.ts";
import { piped } from "../../worker/contract/piped-plan.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { temporaryFolder, tinyConfig, writeModelFolder } from "../model/folder.ts";

const main = join(import.meta.dir, "../../worker/main.ts");

function startWorker(env: Record<string, string>) {
  const turns: WorkerMessages[] = [];
  const messages: WorkerMessage[] = [];
  const waiters: (() => void)[] = [];
  const child = Bun.spawn([process.execPath, main], {
    env: { PATH: process.env.PATH ?? "", HOME: process.env.HOME ?? "", SPANGATE_KV_BYTES: String(1 << 20), ...env },
    stdio: ["ignore", "inherit", "inherit"],
    serialization: "advanced",
    ipc: (said: WorkerMessages) => {
      turns.push(said);
      messages.push(...said);
      for (const wake of waiters.splice(0)) wake();
    },
  });
  const next = async (type: WorkerMessage["type"]): Promise<WorkerMessage> => {
    for (;;) {
      const found = messages.find((message) => message.type === type);
      if (found) return found;
      await new Promise<void>((resolve) => waiters.push(resolve));
    }
  };
  return { child, turns, messages, next };
}

function submit(tokenIds: Int32Array, maxTokens: number): SubmitMessage {
  const root = rootKey("digest", "salt" as CacheSalt, "main");
  const blockKeys = runBlockKeys(root, tokenIds, 16, maxTokens === 0);
  return {
    type: "submit",
    requestId: "r",
    reuse: true,
    plan: { runs: [{ kind: "main", tokenIds, position: 0, sees: [], blockKeys, rootKey: root }] },
    params: {
      maxTokens,
      minTokens: 0,
      ignoreEos: true,
      stopTokenIds: [],
      sampling: greedySampling,
    },
  };
}

test("serves a request and answers stats", async () => {
  const worker = startWorker({ SPANGATE_MODEL: writeModelFolder(tinyConfig), SPANGATE_DENSE: "onnx" });
  const ready = await worker.next("ready");
  expect(ready).toMatchObject({
    card: { vocabSize: 128, blockTokens: 16, eosTokenIds: [2], numericMode: "float32/kv-float16" },
  });
  const malformed = piped(submit(Int32Array.of(1, 2, 3), 4));
  if (malformed.type !== "submit") throw new Error("not a submit message");
  worker.child.send({ ...malformed, plan: { ...malformed.plan, keys: new Uint8Array(31) } });
  expect(await worker.next("failed")).toMatchObject({ requestId: "r", code: "bad_plan" });
  worker.child.send(piped(submit(Int32Array.of(1, 2, 3), 4)));
  expect(await worker.next("finished")).toMatchObject({ reason: "length", usage: { completionTokens: 4 } });
  worker.child.send({ type: "stats", id: 9 });
  expect(await worker.next("stats")).toMatchObject({ id: 9, stats: { generatedTokens: 4, runningRequests: 0 } });
  worker.child.send({ type: "drain" });
  expect(await worker.child.exited).toBe(0);
});

test("ends with all that it had to say, also when the gateway does not read for a while", async () => {
  const worker = startWorker({ SPANGATE_MODEL: writeModelFolder(tinyConfig) });
  await worker.next("ready");
  const message = submit(Int32Array.of(1, 2, 3), 120);
  // Each token is sent with the probabilities of twenty: more in all than the pipe holds.
  const sampling = { ...greedySampling, topLogprobs: 20 };
  const ids = Array.from({ length: 8 }, (_, index) => `request ${index}`);
  for (const requestId of ids) {
    worker.child.send(piped({ ...message, requestId, params: { ...message.params, sampling } }));
  }
  worker.child.send({ type: "drain" });
  await worker.next("tokens");
  Bun.sleepSync(1_000);
  expect(await worker.child.exited).toBe(0);
  const ends = worker.messages.filter(({ type }) => type === "finished");
  expect(ends).toHaveLength(ids.length);
});

test("all that a step has to say comes as one message, in its order", async () => {
  const worker = startWorker({ SPANGATE_MODEL: writeModelFolder(tinyConfig) });
  await worker.next("ready");
  worker.turns.length = 0;
  const twoBlocks = submit(
    Int32Array.from({ length: 33 }, (_, index) => index + 3),
    1,
  );
  worker.child.send(piped(twoBlocks));
  await worker.next("finished");
  expect(worker.turns.map((said) => said.map(({ type }) => type))).toEqual([["kv", "tokens", "finished"]]);
  worker.child.kill();
});

test("has a lower priority than the gateway, which everybody waits for", async () => {
  const worker = startWorker({ SPANGATE_MODEL: writeModelFolder(tinyConfig) });
  await worker.next("ready");
  expect(getPriority(worker.child.pid)).toBe(Math.min(getPriority() + 2, 19));
  worker.child.kill();
});

test("K that stands at other positions is another model's KV", async () => {
  const folder = writeModelFolder(tinyConfig);
  const cards = ["deferred", "relocate"].map(async (positions) => {
    const worker = startWorker({ SPANGATE_MODEL: folder, SPANGATE_KV_POSITIONS: positions, SPANGATE_DENSE: "onnx" });
    const ready = await worker.next("ready");
    worker.child.kill();
    return ready.type === "ready" ? ready.card : undefined;
  });
  const [deferred, relocate] = await Promise.all(cards);
  expect(relocate?.numericMode).toBe("float32/kv-float16/kv-relocate");
  expect(relocate?.digest).not.toBe(deferred?.digest);
});

test("our own products are the default where the processor is fast at them, and another model's KV", async () => {
  const folder = writeModelFolder(tinyConfig);
  const modes = [["reference"], ["reference", "native"]].map(async ([isa, dense]) => {
    const settings = { ...(isa && { SPANGATE_ISA: isa }), ...(dense && { SPANGATE_DENSE: dense }) };
    const worker = startWorker({ SPANGATE_MODEL: folder, ...settings });
    const ready = await worker.next("ready");
    worker.child.kill();
    return ready.type === "ready" ? [ready.card.backend, ready.card.numericMode, ready.card.digest] : undefined;
  });
  const [plain, native] = await Promise.all(modes);
  expect([plain?.[1], native?.[1]]).toEqual(["float32/kv-float16", "float32/native/kv-float16"]);
  expect(native?.[2]).not.toBe(plain?.[2]);
});

const failures: [string, () => Record<string, string>, RegExp][] = [
  ["no model", () => ({ SPANGATE_MODEL: temporaryFolder() }), /no config.json/],
  ["an unknown architecture", () => ({ SPANGATE_MODEL: writeUnknown() }), /MambaForCausalLM.*not supported/],
  ["a bad number", () => ({ SPANGATE_MODEL: "x", SPANGATE_KV_BYTES: "lots" }), /SPANGATE_KV_BYTES: must be a number/],
  ["an unknown device", () => ({ SPANGATE_MODEL: "x", SPANGATE_DEVICE: "tpu" }), /SPANGATE_DEVICE/],
];
const hasDriver = existsSync("/dev/nvidia0");
test.skipIf(hasDriver)("a GPU without a driver is fatal, in one sentence", async () => {
  const worker = startWorker({ SPANGATE_MODEL: writeModelFolder(tinyConfig), SPANGATE_DEVICE: "cuda:0" });
  const fatal = await worker.next("fatal");
  const message = fatal.type === "fatal" ? fatal.message : "";
  expect(message).toBe("no NVIDIA driver: libcuda.so.1 was not found");
  expect(await worker.child.exited).toBe(1);
});

test.each(failures)("%s is fatal, in one sentence", async (_, env, message) => {
  const worker = startWorker(env());
  const fatal = await worker.next("fatal");
  expect(fatal.type === "fatal" ? fatal.message : "").toMatch(message);
  expect(await worker.child.exited).toBe(1);
});

function writeUnknown(): string {
  const folder = writeModelFolder(tinyConfig);
  const config = { ...tinyConfig, architectures: ["MambaForCausalLM"] };
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  return folder;
}

test("ends when the gateway is gone", async () => {
  const worker = startWorker({ SPANGATE_MODEL: writeModelFolder(tinyConfig) });
  await worker.next("ready");
  worker.child.disconnect();
  expect(await worker.child.exited).toBe(0);
});
