/** A worker in memory with the real engine over the fake backend, whose every token depends on all it may see. */
import type { LinkHandlers, OpenLink } from "../../gateway/dispatch/workers/link.ts";
import type { GatewayMessage } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { piped } from "../../worker/contract/piped-plan.ts";
import { choiceModes, servedModes } from "../../worker/contract/sparse.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { fakeCard, unpiped } from "../dispatch/fake-core.ts";
import { FakeBackend } from "../support/fake-backend.ts";

const { sparse: _, ...plainCard } = fakeCard;
export const engineCard = { ...plainCard, vocabSize: 300, contextTokens: 2048, blockTokens: 16, blockCount: 256 };

/** Rows of answers choose what they read, from 16 tokens of their own on. */
export const sparseCard = {
  ...engineCard,
  sparse: { modes: servedModes, mode: "now", mostTokens: 64 },
} as const satisfies ModelCard;
const choices = { seats: 4, listTokens: 256, shadowBytesPerBlock: 64, modes: choiceModes };
const sparseLimits = { fromTokens: 0, tailTokens: 16, mostCost: Number.POSITIVE_INFINITY };

const linkOf =
  (card: ModelCard): OpenLink =>
  (_command, handlers) => {
    const { sparse, ...shape } = card;
    const backend = new FakeBackend({ ...shape, ...(sparse && { sparse: choices }) });
    return linkTo(backend, card, handlers);
  };

export const engineLink = linkOf(engineCard);
export const sparseEngineLink = linkOf(sparseCard);

function linkTo(backend: FakeBackend, card: ModelCard, handlers: LinkHandlers): ReturnType<OpenLink> {
  const engine = new Engine({
    backend,
    sparse: sparseLimits,
    eosTokenIds: [],
    clock: () => performance.now(),
    // As over a pipe: what it sends arrives later.
    emit: (message) => queueMicrotask(() => handlers.onMessage(structuredClone(message))),
    debug: true,
  });
  void engine.run();
  queueMicrotask(() => handlers.onMessage({ type: "ready", card }));
  const receive = (given: GatewayMessage): void => {
    const message = unpiped(structuredClone(piped(given)));
    if (message.type === "submit") engine.submit(message);
    else if (message.type === "abort") engine.abort(message.requestId);
    else if (message.type === "evict") engine.evict(message.blockKeys, message.owner);
  };
  return {
    pid: 1,
    send: (message) => {
      receive(message);
      return true;
    },
    kill: () => engine.stop(),
  };
}
