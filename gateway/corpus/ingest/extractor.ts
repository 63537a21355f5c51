/** Runs the process that reads a document, and ends it when it takes too long, too much memory or is not wanted. */
import { readFile } from "node:fs/promises";
import { answerSigns, type DocumentKind, type ExtractAnswer, type ExtractJob } from "../../extract/protocol.ts";
import { FileError, OverBounds } from "./decode.ts";
import { programFolder, type ReaderProgram } from "./reader-program.ts";

export interface ExtractLimits extends Omit<ExtractJob, "kind"> {
  readonly maxMs: number;
  /** Resident memory of the process, where the system tells it (Linux). */
  readonly maxMemoryBytes: number;
}

const memoryPollMs = 25;
/** Of a UTF-16 unit in UTF-8, at most. */
const bytesPerChar = 3;
const answerFrameBytes = 1_024;

export class Extractor {
  readonly #limits: ExtractLimits;
  readonly #program: ReaderProgram;

  constructor(limits: ExtractLimits, program: ReaderProgram) {
    this.#limits = limits;
    this.#program = program;
  }

  /**
   * The document's text, Markdown for HTML and DOCX.
   * @throws FileError invalid_file with the reason, OverBounds where that is time or memory; the signal's reason when
   *   it is aborted
   */
  async extract(kind: DocumentKind, bytes: Uint8Array, signal: AbortSignal): Promise<string> {
    const { maxMs, maxMemoryBytes, ...limits } = this.#limits;
    const job: ExtractJob = { kind, ...limits };
    const program = await this.#program.arguments();
    signal.throwIfAborted();
    const child = Bun.spawn([process.execPath, ...program, JSON.stringify(job)], {
      // No environment and no file of settings: a document that takes the process over finds no credential in it.
      cwd: programFolder,
      env: {},
      stdin: bytes,
      stdout: "pipe",
      stderr: "ignore",
    });
    const ending = new Ending(() => child.kill("SIGKILL"));
    const timer = setTimeout(() => ending.end(`It took longer than ${maxMs / 1000} s to read.`), maxMs);
    const onAbort = (): void => ending.end("");
    signal.addEventListener("abort", onAbort, { once: true });
    const watch = setInterval(async () => {
      if ((await residentBytes(child.pid)) > maxMemoryBytes) {
        ending.end(`It took more than ${maxMemoryBytes} bytes of memory to read.`);
      }
    }, memoryPollMs);
    try {
      const maxAnswerBytes = limits.maxTextChars * bytesPerChar + answerFrameBytes;
      const answered = await readText(child.stdout, maxAnswerBytes);
      const isWhole = (await child.exited) === 0;
      const answer = isWhole && answered !== undefined ? answerOf(answered) : undefined;
      signal.throwIfAborted();
      if (answer !== undefined && "text" in answer) return answer.text;
      if (answer === undefined && ending.reason !== undefined) throw new OverBounds(ending.reason);
      throw new FileError("invalid_file", answer?.refused ?? "The file cannot be read.");
    } finally {
      clearTimeout(timer);
      clearInterval(watch);
      signal.removeEventListener("abort", onAbort);
      child.kill("SIGKILL");
    }
  }
}

/** Why the process was ended: the first reason counts. */
class Ending {
  reason: string | undefined;
  readonly #kill: () => void;

  constructor(kill: () => void) {
    this.#kill = kill;
  }

  end(reason: string): void {
    this.reason ??= `The file cannot be read: ${reason}`;
    this.#kill();
  }
}

/** 0 where it is not known. */
async function residentBytes(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, "latin1").catch(() => "");
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1] ?? 0) * 1024;
}

/** In pieces, so that the text is not in memory as bytes too. undefined: it is too long, or not UTF-8. */
async function readText(stream: ReadableStream<Uint8Array>, maxBytes: number): Promise<string | undefined> {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  let byteCount = 0;
  try {
    for await (const piece of stream) {
      byteCount += piece.byteLength;
      if (byteCount > maxBytes) return undefined;
      text += decoder.decode(piece, { stream: true });
    }
    return text + decoder.decode();
  } catch {
    return undefined;
  }
}

function answerOf(answered: string): ExtractAnswer | undefined {
  const said = answered.slice(1);
  if (answered.startsWith(answerSigns.text)) return { text: said };
  return answered.startsWith(answerSigns.refused) ? { refused: said } : undefined;
}
