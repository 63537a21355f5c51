/**
 * The worker process: one device, tokens and tensors only. Speaks the messages of contract/messages.ts with
 * the gateway that started it, and ends when that gateway is gone.
 */
import { CpuBackend, numericMode } from "./backend/cpu/cpu-backend.ts";
import { parseWorkerConfig, type WorkerConfig } from "./config.ts";
import type { GatewayMessage, WorkerMessage } from "./contract/messages.ts";
import type { ModelCard } from "./contract/model-card.ts";
import { Engine } from "./engine/loop.ts";
import { type LoadedModel, loadModel } from "./model/load.ts";

function emit(message: WorkerMessage): void {
  process.send?.(message);
}

/** Ends the process once the last message has left: it goes through a pipe that `exit` would cut. */
function exitSoon(exitCode: number): void {
  setTimeout(() => process.exit(exitCode), 100);
}

async function open(config: WorkerConfig): Promise<Engine> {
  const model = loadModel(config.modelFolder, numericMode(config));
  const backend = await CpuBackend.open(model, {
    ...config,
    maxRows: config.stepTokens,
    maxLogitRows: config.maxRunningRequests,
  });
  const engine = new Engine({
    backend,
    eosTokenIds: model.eosTokenIds,
    limits: config,
    clock: () => performance.now(),
    emit,
  });
  process.on("message", (message: GatewayMessage) => receive(engine, backend, message));
  emit({ type: "ready", card: modelCard(config, model, backend) });
  return engine;
}

function receive(engine: Engine, backend: CpuBackend, message: GatewayMessage): void {
  switch (message.type) {
    case "submit":
      return engine.submit(message);
    case "abort":
      return engine.abort(message.requestId);
    case "evict":
      return engine.evict(message.blockKeys);
    case "stats":
      return emit({
        type: "stats",
        id: message.id,
        stats: { ...engine.stats(), residentBytes: backend.residentKvBytes() },
      });
    case "drain":
      void engine.drain().then(() => exitSoon(0));
      return;
  }
}

function modelCard(config: WorkerConfig, model: LoadedModel, backend: CpuBackend): ModelCard {
  return {
    id: config.modelName || model.id,
    digest: model.digest,
    ...backend.shape,
    eosTokenIds: model.eosTokenIds,
    numericMode: numericMode(config),
    backend: backend.name,
  };
}

// Without the gateway nobody hears us; KV in memory is all that is lost.
process.on("disconnect", () => process.exit(0));

/** What start-up cannot mend by trying again is `fatal`; undefined then. */
async function openOrGiveUp(): Promise<Engine | undefined> {
  try {
    return await open(parseWorkerConfig(process.env));
  } catch (error) {
    emit({ type: "fatal", message: error instanceof Error ? error.message : String(error) });
    exitSoon(1);
    return undefined;
  }
}

// A failure after this is a crash: the supervisor starts the worker again.
await (await openOrGiveUp())?.run();
