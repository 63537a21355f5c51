/**
 * The worker process: one device, tokens and tensors only. Speaks the messages of contract/messages.ts with
 * the gateway that started it, and ends when that gateway is gone.
 */

import { giveWay } from "./base/give-way.ts";
import { parseWorkerConfig, type SparseConfig, type WorkerConfig } from "./config.ts";
import type { WorkerMessage, WorkerMessages, WorkerStats } from "./contract/messages.ts";
import type { ModelCard } from "./contract/model-card.ts";
import { type PipedMessage, type PipedSubmit, planOfPiped } from "./contract/piped-plan.ts";
import { servedModes } from "./contract/sparse.ts";
import type { EngineOptions } from "./engine/limits.ts";
import { Engine } from "./engine/loop.ts";
import { rowCostTokens } from "./model/row-cost.ts";
import { type OpenBackend, openBackend } from "./open-backend.ts";
import { rehearse, timeDecodes, timePrompt } from "./rehearsal.ts";

/** What is said in this turn of the event loop. */
let unsent: WorkerMessage[] = [];

/**
 * What a step has to say (which blocks are stored, a token for each request, whose answer is complete) leaves at once and
 * wakes the gateway once: a message alone costs either process more than all that is in it.
 */
function emit(message: WorkerMessage): void {
  if (unsent.push(message) === 1) queueMicrotask(() => sendAll());
}

/** @param onSent called when it has left, and so all before it */
function sendAll(onSent?: () => void): void {
  const messages = unsent;
  unsent = [];
  if (messages.length > 0) process.send?.(messages satisfies WorkerMessages, undefined, undefined, onSent);
}

/** Ends the process once this message has left, and so all before it: they go through a pipe that `exit` would cut. */
function endWith(message: WorkerMessage, exitCode: number): void {
  unsent.push(message);
  sendAll(() => process.exit(exitCode));
}

async function open(config: WorkerConfig): Promise<Engine> {
  const opened = await openBackend(config);
  const options: EngineOptions = {
    backend: opened.backend,
    eosTokenIds: opened.model.eosTokenIds,
    limits: { ...config, rowCostTokens: rowCostTokens(opened.model.config) },
    positions: config.kvPositions,
    ...(config.sparse && { sparse: { fromTokens: config.sparse.fromTokens } }),
    modelDigest: opened.model.digest,
    debug: config.checksInvariants,
    clock: () => performance.now(),
    emit,
  };
  // A GPU's backend has recorded its steps by now.
  if (config.cudaIndex === undefined) await rehearse(options);
  const decodeStepRows = config.cudaIndex === undefined ? await timeDecodes(options) : undefined;
  const timed = config.hostKvBytes > 0 ? await timePrompt(options) : undefined;
  const engine = new Engine({ ...options, limits: { ...options.limits, decodeStepRows } });
  if (timed !== undefined) engine.tiers.noteStep(timed.tokens, timed.ms);
  process.on("message", (message: PipedMessage) => receive(engine, opened, message));
  emit({ type: "ready", card: modelCard(config, opened, engine) });
  return engine;
}

function receive(engine: Engine, opened: OpenBackend, message: PipedMessage): void {
  switch (message.type) {
    case "submit":
      return submit(engine, message);
    case "vocabulary":
      return engine.constraints.setVocabulary(message.vocabulary);
    case "abort":
      return engine.abort(message.requestId);
    case "evict":
      return engine.evict(message.blockKeys, message.owner);
    case "pin":
      return engine.pin(message.blockKeys, message.pinned, message.tier);
    case "keep":
    case "catalog":
    case "moved":
    case "prefetch":
    case "forget":
      return engine.tiers.disk?.receive(message);
    case "stats":
      return emit({ type: "stats", id: message.id, stats: statsOf(engine, opened) });
    case "drain":
      void engine.drain().then(() => endWith({ type: "kv", events: [] }, 0));
      return;
  }
}

function submit(engine: Engine, message: PipedSubmit): void {
  const plan = planOfPiped(message.plan);
  if (plan !== undefined) return engine.submit({ ...message, plan });
  const { requestId } = message;
  emit({ type: "failed", requestId, code: "bad_plan", message: "the plan's numbers do not fit together" });
}

function statsOf(engine: Engine, { residentKvBytes }: OpenBackend): WorkerStats {
  const stats = engine.stats();
  return { ...stats, residentBytes: residentKvBytes?.() ?? stats.residentBytes };
}

function modelCard(config: WorkerConfig, { backend, model, numericMode }: OpenBackend, engine: Engine): ModelCard {
  const { blockTokens } = backend.shape;
  const format = engine.tiers.disk?.format;
  const { hostBlocks } = backend;
  const { sparse: choosing, ...shape } = backend.shape;
  return {
    ...(config.sparse && choosing && { sparse: sparseCard(config.sparse, choosing) }),
    ...(hostBlocks && { hostKv: { blockCount: hostBlocks.slots.length, bytesPerBlock: hostBlocks.format.bytes } }),
    ...(format && { kvFormat: { name: format.name, blockTokens, blockBytes: format.bytes } }),
    id: config.modelName || model.id,
    digest: model.digest,
    ...shape,
    stepPromptTokens: config.prefillTokensBesideDecodes,
    eosTokenIds: model.eosTokenIds,
    samplingDefaults: model.samplingDefaults,
    numericMode,
    backend: backend.name,
  };
}

type Choosing = NonNullable<OpenBackend["backend"]["shape"]["sparse"]>;

function sparseCard({ mode, tokens }: SparseConfig, { modes }: Choosing): ModelCard["sparse"] {
  return { modes: servedModes.filter((served) => modes.includes(served)), mode, mostTokens: tokens };
}

// Without the gateway nobody hears us; KV in memory is all that is lost.
process.on("disconnect", () => process.exit(0));

/** What start-up cannot mend by trying again is `fatal`; undefined then. */
async function openOrGiveUp(): Promise<Engine | undefined> {
  try {
    return await open(parseWorkerConfig(process.env));
  } catch (error) {
    endWith({ type: "fatal", message: error instanceof Error ? error.message : String(error) }, 1);
    return undefined;
  }
}

giveWay();
// A failure after this is a crash: the supervisor starts the worker again.
await (await openOrGiveUp())?.run();
