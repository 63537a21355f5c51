/**
 * Reads files that stand in prompts themselves: as ingestion reads them, by a process of its own, but within closer bounds,
 * since somebody waits for the answer. Nothing of them is stored, and of an upload no more than a piece is in memory at once
 * beside its text. Texts of documents are remembered for a while, because a
 * conversation sends its files again with every turn.
 */
import type { FileId, TenantId } from "../../../db/ids.ts";
import { ApiError } from "../../base/errors.ts";
import { freeBytes } from "../../base/free-bytes.ts";
import { type Hold, holdUntil, onAbort } from "../../base/hold.ts";
import { Pace } from "../../base/pace.ts";
import { RoundRobinQueue } from "../../base/round-robin-queue.ts";
import { TenantLru } from "../../base/tenant-lru.ts";
import type { DocumentText } from "../../extract/protocol.ts";
import { corpusLimits } from "../base/limits.ts";
import type { FileService } from "../files/files.ts";
import { checkedText, decodeText, type FileBytes, FileError, inMemory, OverBounds } from "./decode.ts";
import { type ExtractLimits, Extractor } from "./extractor.ts";
import { fileKindOf, signatureBytes } from "./file-kinds.ts";
import { ReaderProgram } from "./reader-program.ts";

/** An upload, named by its id, or bytes that came with the request. */
export interface PromptFile {
  /** The request's field, for errors. */
  readonly param: string;
  readonly source: { readonly fileId: string } | { readonly base64: string };
  /** undefined: for an upload the name that it was uploaded with. */
  readonly filename: string | undefined;
  /** Tells what the file is where the name does not. */
  readonly mediaType?: string | undefined;
}

export interface FileText extends DocumentText {
  readonly filename: string | undefined;
  /** Absent: the bytes came with the request. */
  readonly fileId?: FileId;
}

/** A file that was found, and is not opened yet. */
interface FoundFile extends Pick<FileText, "filename" | "fileId"> {
  readonly mediaType: string;
  /** Names the content; the tenant's own texts alone are looked through by it. */
  readonly sha256: string;
  readonly byteCount: number;
  readonly open: () => Promise<OpenedFile>;
}

interface OpenedFile extends FileBytes {
  /** What the process that reads documents gets. */
  readonly document: Uint8Array | number;
  close(): Promise<void> | void;
}

const extraction: ExtractLimits = {
  maxTextChars: corpusLimits.maxTextChars,
  maxPages: corpusLimits.maxPages,
  maxUnpackedBytes: corpusLimits.maxUnpackedBytes,
  maxParts: corpusLimits.maxParts,
  maxMs: corpusLimits.promptDocumentMs,
  maxMemoryBytes: corpusLimits.quickExtractBytes,
};

/** A page's place and name, as an object in memory. */
const bytesPerPage = 128;

export class PromptFiles {
  readonly #files: Pick<FileService, "find" | "openPieces">;
  readonly #extractor: Extractor;
  readonly #texts = new TenantLru<DocumentText>({ maxSize: corpusLimits.promptTextBytes });
  readonly #waiting = new RoundRobinQueue<() => void>();
  /** Documents that are being read, by tenant. */
  readonly #reading = new Map<string, number>();
  #readCount = 0;

  constructor(files: Pick<FileService, "find" | "openPieces">, maxMs = extraction.maxMs) {
    this.#files = files;
    this.#extractor = new Extractor({ ...extraction, maxMs }, new ReaderProgram());
  }

  /**
   * The texts of a request's files, in their order.
   * @throws ApiError not_found, invalid_value, both with `param`; the signal's reason when it is aborted
   */
  async read(tenantId: TenantId, files: readonly PromptFile[], signal: AbortSignal): Promise<readonly FileText[]> {
    const texts: FileText[] = [];
    let [bytesLeft, charsLeft] = [corpusLimits.maxUploadBytes, corpusLimits.maxTextChars] as [number, number];
    for (const file of files) {
      const found = this.#find(tenantId, file);
      bytesLeft -= found.byteCount;
      if (bytesLeft < 0)
        throw refused(file, `makes the request's files larger than ${corpusLimits.maxUploadBytes} bytes`);
      const text = await this.#textOf(tenantId, file, found, signal);
      charsLeft -= text.text.length;
      if (charsLeft < 0) {
        throw refused(
          file,
          `makes the text of the request's files longer than ${corpusLimits.maxTextChars} characters`,
        );
      }
      texts.push({
        ...text,
        filename: found.filename,
        ...(found.fileId === undefined ? {} : { fileId: found.fileId }),
      });
    }
    return texts;
  }

  /** @throws ApiError not_found */
  #find(tenantId: TenantId, file: PromptFile): FoundFile {
    const { source, filename, mediaType = "", param } = file;
    if ("base64" in source) {
      const { base64 } = source;
      const sha256 = new Bun.CryptoHasher("sha256").update(base64).digest("hex");
      const kind = /^data:([^;,]{1,255})/.exec(base64)?.[1] ?? mediaType;
      // Decoded once there is a place to read it, since many requests may wait for one.
      const open = async () => openedBytes(await bytesOf(file, base64));
      return { filename, mediaType: kind, sha256, byteCount: (base64.length * 3) / 4, open };
    }
    const row = this.#files.find(tenantId, source.fileId);
    if (row === undefined) throw new ApiError("not_found", { message: `'${param}': no such file.`, param });
    const { id, sha256, byteCount } = row;
    const open = async (): Promise<OpenedFile> => {
      const pieces = await this.#files.openPieces(tenantId, id);
      return { ...pieces, document: pieces.fd };
    };
    return { filename: filename ?? row.filename, mediaType: row.mediaType, sha256, byteCount, fileId: id, open };
  }

  async #textOf(tenantId: TenantId, file: PromptFile, found: FoundFile, signal: AbortSignal): Promise<DocumentText> {
    // The name tells how a file is read that is no archive and no PDF.
    const key = JSON.stringify([found.sha256, found.filename, found.mediaType]);
    const known = this.#texts.get(tenantId, key);
    if (known !== undefined) return known;
    using _place = await this.#enter(tenantId, signal);
    await using held = new AsyncDisposableStack();
    try {
      const opened = held.adopt(await found.open(), (open) => open.close());
      const kind = fileKindOf(found.filename ?? "", found.mediaType, opened.read(0, signatureBytes));
      if (kind === "plain" || kind === "markdown" || kind === "lines") {
        const decoded = await decodeText(opened);
        if (opened.document instanceof Uint8Array) freeBytes(opened.document);
        return { text: decoded, pages: [] };
      }
      const { text, pages } = await this.#extractor.extract(kind, opened.document, signal);
      const read = { text: checkedText(text), pages };
      this.#texts.set(tenantId, key, read, text.length * 2 + pages.length * bytesPerPage);
      return read;
    } catch (error) {
      if (!(error instanceof FileError)) throw error;
      const more = error instanceof OverBounds ? " A vector store reads larger ones." : "";
      throw new ApiError("invalid_value", { message: `'${file.param}': ${error.message}${more}`, param: file.param });
    }
  }

  /**
   * Waits for a place: a tenant has a part of them, and tenants take turns.
   * @throws ApiError concurrency_limited, overloaded; the signal's reason
   */
  async #enter(tenantId: TenantId, signal: AbortSignal): Promise<Hold> {
    signal.throwIfAborted();
    const { promptsWaiting, promptsWaitingPerTenant } = corpusLimits;
    const retryAfterS = 1;
    if (this.#waiting.sizeOf(tenantId) >= promptsWaitingPerTenant) {
      const message = "Too many of the tenant's requests wait for their files to be read.";
      throw new ApiError("concurrency_limited", { message, retryAfterS });
    }
    if (this.#waiting.size >= promptsWaiting) throw new ApiError("overloaded", { retryAfterS });
    const turn = Promise.withResolvers<void>();
    const enter = (): void => {
      this.#readCount += 1;
      this.#reading.set(tenantId, (this.#reading.get(tenantId) ?? 0) + 1);
      turn.resolve();
    };
    this.#waiting.push(tenantId, enter);
    using _listener = onAbort(signal, () => {
      if (this.#waiting.remove(tenantId, enter)) turn.reject(signal.reason);
    });
    this.#next();
    await turn.promise;
    return holdUntil(() => {
      this.#readCount -= 1;
      const left = (this.#reading.get(tenantId) ?? 1) - 1;
      if (left > 0) this.#reading.set(tenantId, left);
      else this.#reading.delete(tenantId);
      this.#next();
    });
  }

  #next(): void {
    if (this.#readCount >= corpusLimits.promptReaders) return;
    const mayRead = (id: string): boolean => (this.#reading.get(id) ?? 0) < corpusLimits.promptReadersPerTenant;
    this.#waiting.take(mayRead)?.();
  }
}

/** Bytes that came with the request. */
const openedBytes = (bytes: Uint8Array): OpenedFile => ({
  ...inMemory(bytes),
  document: bytes,
  close: () => undefined,
});

const refused = ({ param }: PromptFile, text: string): ApiError =>
  new ApiError("invalid_value", { message: `'${param}' ${text}.`, param });

/** Characters of base64 that are decoded before others have a turn. */
const pieceChars = 2 ** 20;

/** @param given base64, or a data URL of it. @throws ApiError invalid_value */
async function bytesOf(file: PromptFile, given: string): Promise<Uint8Array> {
  const text = given.startsWith("data:") ? given.slice(given.indexOf(",") + 1) : given;
  const bytes = new Uint8Array(Math.ceil((text.length * 3) / 4));
  const pace = new Pace();
  let byteCount = 0;
  for (let at = 0; at < text.length; ) {
    await pace.breathe();
    const decoded = decodedPiece(text, at, bytes.subarray(byteCount));
    if (decoded === undefined) throw refused(file, "must be base64, or a data URL of it");
    at += decoded.read;
    byteCount += decoded.written;
  }
  if (byteCount === 0) throw refused(file, "is an empty file");
  return byteCount === bytes.length ? bytes : new Uint8Array(bytes.buffer.transfer(byteCount));
}

/** @returns what was read and written; undefined: it is no base64 */
function decodedPiece(text: string, at: number, into: Uint8Array) {
  const isLast = text.length - at <= pieceChars;
  const piece = text.slice(at, at + pieceChars);
  try {
    if (isLast) return { read: piece.length, written: into.setFromBase64(piece).written };
    const { read, written } = into.setFromBase64(piece, { lastChunkHandling: "stop-before-partial" });
    // Padding ends a text, and a piece of blanks alone is none.
    return written === 0 || written % 3 > 0 ? undefined : { read, written };
  } catch {
    return undefined;
  }
}
