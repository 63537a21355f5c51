/** Runs a server as a child process, for the demo, benchmarks and end-to-end tests. */
import { programPath } from "../../../places/places.ts";
import { CommandError } from "./command.ts";

export interface ServerProcess {
  readonly url: string;
  readonly pid: number;
  readonly exited: Promise<number>;
  /** Asks it to finish and waits; resolves with the exit code. */
  stop(): Promise<number>;
  kill(signal: "SIGKILL" | "SIGTERM"): void;
}

export interface ServerOptions {
  readonly env: Readonly<Record<string, string>>;
  /** Milliseconds until /ready has to answer 200. */
  readonly readyTimeoutMs?: number;
  /** Receives the server's log (its standard error); by default only kept for a failure's message. */
  readonly onLog?: (text: string) => void;
}

/** @throws CommandError with the server's last words when it does not become ready. */
export async function startServer({ env, readyTimeoutMs = 120_000, onLog }: ServerOptions): Promise<ServerProcess> {
  const child = Bun.spawn([process.execPath, programPath("gateway")], {
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let lastWords = "";
  const keep = (text: string) => {
    lastWords = (lastWords + text).slice(-4_000);
  };
  const listening = Promise.withResolvers<string>();
  let output = "";
  void drain(child.stdout, (text) => {
    keep(text);
    output = (output + text).slice(-4_000);
    const [, url] = /listening on (http:\/\/\S+)\s/.exec(output) ?? [];
    if (url !== undefined) listening.resolve(url);
  });
  void drain(child.stderr, (text) => {
    keep(text);
    onLog?.(text);
  });
  const failed = (what: string) => new CommandError(`the server ${what}${lastWords && `:\n${lastWords.trim()}`}`);
  const deadlineMs = performance.now() + readyTimeoutMs;
  const exited = child.exited;
  const late = Promise.withResolvers<void>();
  // A sleep that nobody ends would keep the process of a command that is done for as long.
  const timer = setTimeout(late.resolve, readyTimeoutMs);
  const url = await Promise.race([listening.promise, exited, late.promise]);
  clearTimeout(timer);
  if (typeof url !== "string") {
    child.kill("SIGKILL");
    // The last lines that it wrote may not have been read yet.
    await Bun.sleep(50);
    throw failed(url === undefined ? `did not listen within ${readyTimeoutMs} ms` : `ended with exit code ${url}`);
  }
  while (!(await isReady(url))) {
    if (child.exitCode !== null) throw failed(`ended with exit code ${child.exitCode}`);
    if (performance.now() > deadlineMs) {
      child.kill("SIGKILL");
      throw failed(`was not ready within ${readyTimeoutMs} ms`);
    }
    await Bun.sleep(20);
  }
  return {
    url,
    pid: child.pid,
    exited,
    kill: (signal) => child.kill(signal),
    stop: () => {
      child.kill("SIGTERM");
      return exited;
    },
  };
}

async function isReady(url: string): Promise<boolean> {
  const response = await fetch(`${url}/ready`).catch(() => undefined);
  await response?.body?.cancel();
  return response?.status === 200;
}

async function drain(stream: ReadableStream<Uint8Array>, onText: (text: string) => void): Promise<void> {
  const decoder = new TextDecoder();
  for await (const chunk of stream) onText(decoder.decode(chunk, { stream: true }));
}
