/** A worker in memory with the real engine over the fake backend, whose every token depends on all it may see. */
import type { LinkHandlers, OpenLink } from "../../gateway/dispatch/workers/link.ts";
import type { GatewayMessage } from "../../worker/contract/messages.ts";
import { piped } from "../../worker/contract/piped-plan.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { fakeCard, unpiped } from "../dispatch/fake-core.ts";
import { FakeBackend } from "../support/fake-backend.ts";

export const engineCard = { ...fakeCard, vocabSize: 300, contextTokens: 2048, blockTokens: 16, blockCount: 256 };

export const engineLink: OpenLink = (_command, handlers: LinkHandlers) => {
  const engine = new Engine({
    backend: new FakeBackend(engineCard),
    eosTokenIds: [],
    clock: () => performance.now(),
    // As over a pipe: what it sends arrives later.
    emit: (message) => queueMicrotask(() => handlers.onMessage(structuredClone(message))),
    debug: true,
  });
  void engine.run();
  queueMicrotask(() => handlers.onMessage({ type: "ready", card: engineCard }));
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
};
