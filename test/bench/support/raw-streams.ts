/**
 * Many streamed answers at the same time, each on a connection of its own. What comes is kept as it is and read only
 * when all have ended, so that the reader takes little from the server that it shares a machine with.
 */

export interface RawStream {
  /** Body of the answer, or what came instead. */
  readonly text: string;
  readonly status: number;
  readonly error: string | undefined;
  readonly firstMs: number;
  readonly endMs: number;
  /** Longest time between two pieces. */
  readonly gapMs: number;
}

export interface RawRequest {
  readonly apiKey: string;
  readonly path: string;
  readonly body: object;
}

const lastChunk = "\r\n0\r\n\r\n";

/** @param onOpen told of each stream whose answer begins (+1) and ends (-1) */
export function openStream(url: string, request: RawRequest, onOpen: (change: 1 | -1) => void): Promise<RawStream> {
  const { hostname, port } = new URL(url);
  const body = JSON.stringify(request.body);
  const head = [
    `POST ${request.path} HTTP/1.1`,
    `host: ${hostname}:${port}`,
    `authorization: Bearer ${request.apiKey}`,
    "content-type: application/json",
    `content-length: ${Buffer.byteLength(body)}`,
  ];
  const { promise, resolve } = Promise.withResolvers<RawStream>();
  const pieces: Buffer[] = [];
  let lengths: Lengths | undefined;
  let [byteCount, tail] = [0, Buffer.alloc(0)];
  let [firstMs, lastMs, gapMs, over] = [0, 0, 0, false];
  const end = (error: string | undefined): void => {
    if (over) return;
    over = true;
    if (pieces.length > 0) onOpen(-1);
    const whole = Buffer.concat(pieces);
    const status = Number(/^HTTP\/1\.1 (\d+)/.exec(whole.toString("latin1", 0, 16))?.[1] ?? 0);
    resolve({ text: bodyOf(whole), status, error, firstMs, endMs: performance.now(), gapMs });
  };
  Bun.connect({
    hostname,
    port: Number(port),
    socket: {
      open: (socket) => void socket.write(`${head.join("\r\n")}\r\n\r\n${body}`),
      data: (socket, data) => {
        const nowMs = performance.now();
        if (pieces.length === 0) {
          firstMs = nowMs;
          onOpen(1);
        } else gapMs = Math.max(gapMs, nowMs - lastMs);
        lastMs = nowMs;
        pieces.push(Buffer.from(data));
        byteCount += data.byteLength;
        lengths ??= lengthsOf(pieces);
        tail = Buffer.concat([tail, data]).subarray(-lastChunk.length);
        // What was whole before its head went out comes with its length, not in chunks.
        const isWhole =
          lengths?.body === undefined
            ? tail.toString("latin1") === lastChunk
            : byteCount >= lengths.head + lengths.body;
        if (!isWhole) return;
        end(undefined);
        socket.end();
      },
      close: () => end("closed before the end"),
      error: (_socket, error) => end(error.message),
    },
  }).catch((error: unknown) => end(error instanceof Error ? error.message : String(error)));
  return promise;
}

interface Lengths {
  readonly head: number;
  /** undefined: it comes in chunks. */
  readonly body: number | undefined;
}

/** undefined while the head is on its way. */
function lengthsOf(pieces: readonly Buffer[]): Lengths | undefined {
  const start = Buffer.concat(pieces);
  const end = start.indexOf("\r\n\r\n");
  if (end < 0) return undefined;
  const [, length] = /^content-length: (\d+)\r?$/im.exec(start.toString("latin1", 0, end)) ?? [];
  return { head: end + 4, body: length === undefined ? undefined : Number(length) };
}

/** Without head and chunk sizes, which count bytes. */
function bodyOf(whole: Buffer): string {
  const { head, body } = lengthsOf([whole]) ?? { head: whole.byteLength, body: undefined };
  if (body !== undefined) return whole.subarray(head).toString();
  const chunks: Buffer[] = [];
  for (let at = head; ; ) {
    const line = whole.indexOf("\r\n", at);
    const size = Number.parseInt(whole.toString("latin1", at, line), 16);
    if (line < 0 || !(size > 0)) return Buffer.concat(chunks).toString();
    chunks.push(whole.subarray(line + 2, line + 2 + size));
    at = line + 4 + size;
  }
}
