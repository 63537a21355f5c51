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

interface BareAnswer {
  readonly id: number;
  /** Milliseconds from the message's arrival to this answer. */
  readonly tookMs: number;
}

/** About what a worker takes for a short question: between two requests a gateway sleeps, and wakes slower for it. */
const workMs = 2;

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
  const waiting = new Map<number, (tookMs: number) => void>();
  const worker = Bun.spawn([process.execPath, import.meta.path, "worker"], {
    stdio: ["ignore", 2, 2],
    serialization: "advanced",
    ipc: ({ id, tookMs }: BareAnswer) => {
      waiting.get(id)?.(tookMs);
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
      const answered = Promise.withResolvers<number>();
      waiting.set(id, answered.resolve);
      worker.send({ id, numbers: new Int32Array(64) } satisfies BareMessage);
      const spangate = { ttft_ms: await answered.promise };
      const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
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

/** The other process: it is as busy as a worker, and answers. */
function answerLater({ id }: BareMessage): void {
  const startMs = performance.now();
  while (performance.now() - startMs < workMs);
  process.send?.({ id, tookMs: performance.now() - startMs } satisfies BareAnswer);
}

if (import.meta.main) {
  if (process.argv[2] !== "worker") serve();
  else process.on("message", answerLater);
}
