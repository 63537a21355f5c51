/** HTTP by hand: bytes out, and whatever comes back, so that what no client library would send can be sent. */
import { connect } from "node:net";

export interface RawAnswer {
  readonly status: number;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: string;
}

export interface RawExchange {
  /** Answers in the order they came; the last may be cut short. */
  readonly answers: readonly RawAnswer[];
  readonly closedByServer: boolean;
  readonly ms: number;
}

export interface RawOptions {
  /** What is waited for after the last byte that came, once the request has been sent. */
  readonly quietMs: number;
  /** Ends our side when all is sent. */
  readonly end: boolean;
}

export async function exchange(url: string, bytes: Uint8Array, { quietMs, end }: RawOptions): Promise<RawExchange> {
  const { hostname, port } = new URL(url);
  const startMs = performance.now();
  const pieces: Buffer[] = [];
  const state = { closedByServer: false };
  await new Promise<void>((resolve) => {
    const socket = connect({ host: hostname, port: Number(port) });
    const finish = (): void => {
      clearTimeout(timer);
      socket.destroy();
      resolve();
    };
    let timer = setTimeout(finish, quietMs);
    const wait = (ms: number): void => {
      clearTimeout(timer);
      timer = setTimeout(finish, ms);
    };
    socket.on("connect", () => {
      if (end) socket.end(bytes);
      else socket.write(bytes);
    });
    socket.on("data", (piece: Buffer) => {
      pieces.push(piece);
      // Whole: a moment longer, in case the server took the bytes for more than one request.
      wait(isWhole(Buffer.concat(pieces).toString("latin1")) ? settleMs : quietMs);
    });
    socket.on("end", () => {
      state.closedByServer = true;
      finish();
    });
    // A reset is an end as well.
    socket.on("error", () => {
      state.closedByServer = true;
      finish();
    });
  });
  const answers = parseAnswers(Buffer.concat(pieces).toString("latin1"));
  return { answers, closedByServer: state.closedByServer, ms: performance.now() - startMs };
}

const settleMs = 2;

function isWhole(text: string): boolean {
  const [first] = parseAnswers(text);
  if (first === undefined) return false;
  const length = first.headers.get("content-length");
  if (length !== undefined) return first.body.length >= Number(length);
  if (first.headers.get("transfer-encoding") === "chunked") return first.body.endsWith("0\r\n\r\n");
  return text.includes("\r\n\r\n");
}

/** Each answer's body as it stands there, chunks and all. */
function parseAnswers(text: string): readonly RawAnswer[] {
  const answers: RawAnswer[] = [];
  let rest = text;
  while (rest !== "") {
    const [, status] = /^HTTP\/1\.[01] (\d{3})/.exec(rest) ?? [];
    if (status === undefined) throw new Error(`no answer of HTTP: ${JSON.stringify(rest.slice(0, 80))}`);
    const headEnd = rest.indexOf("\r\n\r\n");
    if (headEnd < 0) return answers;
    const lines = rest.slice(0, headEnd).split("\r\n").slice(1);
    const headers = new Map(lines.map((line) => splitHeader(line)));
    const length = headers.get("content-length");
    const bodyStart = headEnd + 4;
    const bodyEnd = length === undefined ? rest.length : bodyStart + Number(length);
    answers.push({ status: Number(status), headers, body: rest.slice(bodyStart, bodyEnd) });
    rest = rest.slice(bodyEnd);
  }
  return answers;
}

function splitHeader(line: string): [string, string] {
  const colon = line.indexOf(":");
  return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
}
