/**
 * The least that a gateway of this kind can cost: Bun's HTTP server, one message to another process and one back, and
 * an answer in the events that `askChat` reads. No key, limit, schema, token or trace. Run as a program it is the server;
 * with `worker` behind it, the other process.
 */
interface BareMessage {
  readonly id: number;
  /** As many numbers as the real message has. */
  readonly numbers: Int32Array;
}

export interface BareServer extends AsyncDisposable {
  readonly url: string;
  readonly pid: number;
}

export async function startBareServer(): Promise<BareServer> {
  const child = Bun.spawn([process.execPath, import.meta.path], { stdio: ["ignore", "pipe", 2] });
  for await (const piece of child.stdout) {
    const url = new TextDecoder().decode(piece).trim();
    return {
      url,
      pid: child.pid,
      [Symbol.asyncDispose]: async () => {
        child.kill();
        await child.exited;
      },
    };
  }
  throw new Error("the bare server did not start");
}

const frame = (fields: object): string => `data: ${JSON.stringify(fields)}\n\n`;

function serve(): void {
  const waiting = new Map<number, () => void>();
  const worker = Bun.spawn([process.execPath, import.meta.path, "worker"], {
    stdio: ["ignore", 2, 2],
    serialization: "advanced",
    ipc: ({ id }: BareMessage) => {
      waiting.get(id)?.();
      waiting.delete(id);
    },
  });
  let asked = 0;
  const server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch: async (request) => {
      await request.json();
      const id = asked++;
      const answered = Promise.withResolvers<void>();
      waiting.set(id, answered.resolve);
      worker.send({ id, numbers: new Int32Array(64) } satisfies BareMessage);
      await answered.promise;
      const [usage, spangate] = [{ prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 }, { ttft_ms: 0 }];
      const end = { choices: [{ delta: { content: "x" }, finish_reason: "length" }] };
      const body = `${frame(end)}${frame({ choices: [], usage, spangate })}data: [DONE]\n\n`;
      return new Response(body, { headers: { "content-type": "text/event-stream" } });
    },
  });
  process.stdout.write(`${server.url.origin}\n`);
  process.on("SIGTERM", () => {
    worker.kill();
    process.exit(0);
  });
}

if (import.meta.main) {
  if (process.argv[2] !== "worker") serve();
  else process.on("message", (message: BareMessage) => process.send?.(message));
}
