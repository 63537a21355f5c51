/**
 * Runs the process that reads a document. Ends it when it takes too long, uses too much memory, or is not needed any
 * more.
 */
import { readFile } from "node:fs/promises";
import { z } from "zod";
import {
  answerSigns,
  type DocumentKind,
  type DocumentText,
  type ExtractAnswer,
  type ExtractJob,
  maxPageNameChars,
} from "../../extract/protocol.ts";
import { FileError, OverBounds } from "./decode.ts";
import { programFolder, type ReaderProgram } from "./reader-program.ts";

export interface ExtractLimits extends Omit<ExtractJob, "kind"> {
  readonly maxMs: number;
  /** The most resident memory of the process, in bytes. Checked where the system reports it (Linux). */
  readonly maxMemoryBytes: number;
}

const memoryPollMs = 25;
/** A UTF-16 unit takes at most this many bytes in UTF-8. */
const bytesPerChar = 3;
const answerFrameBytes = 1_024;
/** A page's place and name as JSON; a character of the name takes at most six bytes there. */
const bytesPerPage = 64 + maxPageNameChars * 6;

export class Extractor {
  readonly #limits: ExtractLimits;
  readonly #program: ReaderProgram;

  constructor(limits: ExtractLimits, program: ReaderProgram) {
    this.#limits = limits;
    this.#program = program;
  }

  /**
   * Extracts the document's text and where its pages begin; HTML and DOCX become Markdown.
   * @param document its bytes, or the descriptor of an open file, of which no byte is ever in this process's memory
   * @throws FileError invalid_file with the reason, OverBounds where the reason is time or memory; the signal's reason
   *   when it is aborted
   */
  async extract(kind: DocumentKind, document: Uint8Array | number, signal: AbortSignal): Promise<DocumentText> {
    const { maxMs, maxMemoryBytes, ...limits } = this.#limits;
    const job: ExtractJob = { kind, ...limits };
    const program = await this.#program.arguments();
    signal.throwIfAborted();
    const child = Bun.spawn([process.execPath, ...program, JSON.stringify(job)], {
      // The process gets no environment and no settings file, so a malicious document that takes it over finds no
      // credential.
      cwd: programFolder,
      env: {},
      stdin: document,
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
      const maxAnswerBytes = limits.maxTextChars * bytesPerChar + limits.maxPages * bytesPerPage + answerFrameBytes;
      const answered = await readText(child.stdout, maxAnswerBytes);
      const isWhole = (await child.exited) === 0;
      const answer = isWhole && answered !== undefined ? answerOf(answered, limits.maxPages) : undefined;
      signal.throwIfAborted();
      if (answer !== undefined && "text" in answer) return answer;
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

/** Why the process was ended. The first reason counts. */
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

/** The resident bytes of a process; 0 where they are not known. */
async function residentBytes(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, "latin1").catch(() => "");
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1] ?? 0) * 1024;
}

/**
 * Decodes the stream piece by piece, so that the text is not in memory as bytes too. undefined: it is too long or not
 * UTF-8.
 */
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

const pageStart = z.strictObject({
  at: z.int().min(0),
  number: z.int().min(1),
  name: z.string().max(maxPageNameChars).optional(),
});

/** A document may have taken its reader over: whatever is no answer gives undefined. */
function answerOf(answered: string, maxPages: number): ExtractAnswer | undefined {
  if (answered.startsWith(answerSigns.refused)) return { refused: answered.slice(1) };
  const lineEnd = answered.indexOf("\n");
  if (!answered.startsWith(answerSigns.text) || lineEnd === -1) return undefined;
  const text = answered.slice(lineEnd + 1);
  const pages = z
    .array(pageStart)
    .max(maxPages)
    .safeParse(jsonOf(answered.slice(1, lineEnd)));
  const inOrder = pages.data?.every(({ at }, index) => at > (pages.data[index - 1]?.at ?? -1) && at < text.length);
  return pages.success && inOrder === true ? { text, pages: pages.data } : undefined;
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
