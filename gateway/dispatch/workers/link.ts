/** One worker process and the typed messages to and from it. Knows nothing of what they mean. */
import type { GatewayMessage, WorkerMessage, WorkerMessages } from "../../../worker/contract/messages.ts";
import { piped } from "../../../worker/contract/piped-plan.ts";

export interface WorkerCommand {
  /** Program and arguments. */
  readonly argv: readonly string[];
  /** The whole environment of the process. */
  readonly env: Readonly<Record<string, string>>;
}

export interface WorkerExit {
  readonly exitCode: number | null;
  readonly signal: string | null;
}

export interface LinkHandlers {
  onMessage(message: WorkerMessage): void;
  /** Called once, when the process has gone. No message follows. */
  onExit(exit: WorkerExit): void;
}

export interface WorkerLink {
  readonly pid: number;
  /** False when the process can no longer be reached; onExit follows or has come. */
  send(message: GatewayMessage): boolean;
  kill(signal: "SIGTERM" | "SIGKILL"): void;
}

export type OpenLink = (command: WorkerCommand, handlers: LinkHandlers) => WorkerLink;

/** Starts the process. Its standard output goes to our standard error, so that ours stays free for the ready line. */
export const spawnLink: OpenLink = (command, handlers) => {
  const child = Bun.spawn([...command.argv], {
    env: command.env,
    stdio: ["ignore", 2, 2],
    serialization: "advanced",
    ipc: (messages: WorkerMessages) => {
      for (const message of messages) if (!gone) handlers.onMessage(message);
    },
    onExit: (_child, exitCode, signalCode) => {
      gone = true;
      handlers.onExit({ exitCode, signal: signalCode === null ? null : String(signalCode) });
    },
  });
  let gone = false;
  return {
    pid: child.pid,
    send(message) {
      if (gone) return false;
      try {
        child.send(piped(message));
        return true;
      } catch {
        // The pipe broke before the exit was seen.
        return false;
      }
    },
    kill: (signal) => child.kill(signal),
  };
};
