/** Workers in memory: the test decides when one is ready, ticks or dies. */
import type { LinkHandlers, OpenLink } from "../../gateway/dispatch/workers/link.ts";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import { FakeCore, fakeCard } from "./fake-core.ts";

export class FakeProcess {
  readonly core: FakeCore;
  readonly handlers: LinkHandlers;
  alive = true;

  constructor(handlers: LinkHandlers) {
    this.handlers = handlers;
    this.core = new FakeCore((message) => {
      if (this.alive) handlers.onMessage(message);
    });
  }

  /** Requests it was sent, in order. */
  get submits(): SubmitMessage[] {
    return this.core.received.filter((message) => message.type === "submit");
  }

  get submittedIds(): string[] {
    return this.submits.map(({ requestId }) => requestId);
  }

  ready(): void {
    this.handlers.onMessage({ type: "ready", card: fakeCard });
  }

  die(): void {
    if (!this.alive) return;
    this.vanish();
    this.tellExit();
  }

  /** Nothing reaches it or comes from it any more, and the gateway has not been told. */
  vanish(): void {
    this.alive = false;
  }

  /** Tells the gateway of a process that has vanished. */
  tellExit(): void {
    this.handlers.onExit({ exitCode: null, signal: "SIGKILL" });
  }
}

/** An `openLink` that keeps the processes it made, in order. */
export function fakeLinks(): { readonly openLink: OpenLink; readonly processes: FakeProcess[] } {
  const processes: FakeProcess[] = [];
  const openLink: OpenLink = (_command, handlers) => {
    const process = new FakeProcess(handlers);
    processes.push(process);
    return {
      pid: 1000 + processes.length,
      send(message) {
        if (process.alive) process.core.receive(message);
        return process.alive;
      },
      kill: () => process.die(),
    };
  };
  return { openLink, processes };
}
