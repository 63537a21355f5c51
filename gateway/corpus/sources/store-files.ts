/** A vector store's files as a sync sees them, in the server itself. */
import type { CorpusRow } from "../../../db/corpora.ts";
import type { CorpusFileRow, VisibleStatus } from "../../../db/corpus-files.ts";
import { ApiError } from "../../base/errors.ts";
import { delay, Pace, yieldToRequests } from "../../base/pace.ts";
import type { LocalFile, StoredFile } from "../../sources/sync-plan.ts";
import type { FileFields, StoreFiles } from "../../sources/sync-run.ts";
import { corpusLimits } from "../base/limits.ts";
import type { FileService } from "../files/files.ts";
import type { CorpusFileService } from "../ingest/corpus-files.ts";

const pollMs = 50;

export interface StoreServices {
  readonly files: FileService;
  readonly corpusFiles: CorpusFileService;
}

export class OwnStore implements StoreFiles {
  readonly #services: StoreServices;
  readonly #corpus: CorpusRow;
  readonly #signal: AbortSignal;

  /** @param signal ends waiting for ingestion */
  constructor(services: StoreServices, corpus: CorpusRow, signal: AbortSignal) {
    this.#services = services;
    this.#corpus = corpus;
    this.#signal = signal;
  }

  async *pages(): AsyncGenerator<readonly StoredFile[]> {
    const { corpusFiles } = this.#services;
    const pace = new Pace(yieldToRequests);
    for (let afterSeq: number | undefined; ; ) {
      const range = { limit: corpusLimits.maxPageItems, order: "asc", afterSeq } as const;
      const { rows, hasMore } = corpusFiles.list(this.#corpus, range);
      const uploads = corpusFiles.uploadsOf(rows);
      yield rows.map((row) => storedFileOf(row, uploads.get(row.fileId)));
      if (!hasMore) return;
      afterSeq = rows.at(-1)?.seq;
      await pace.breathe();
      this.#signal.throwIfAborted();
    }
  }

  async setAttributes(id: string, attributes: StoredFile["attributes"]): Promise<void> {
    this.#services.corpusFiles.updateAttributes(this.#corpus, id, attributes);
  }

  async add({ name, bytesAt = "" }: LocalFile, fields: FileFields): Promise<string> {
    const { files } = this.#services;
    const { tenantId } = this.#corpus;
    const fetched = Bun.file(bytesAt);
    using _room = files.reserve(tenantId, fetched.size);
    const upload = { filename: name, purpose: "assistants", mediaType: fetched.type, bytes: await fetched.bytes() };
    const { id } = await files.upload(tenantId, upload);
    await this.addAgain(id, fields);
    return id;
  }

  async addAgain(fileId: string, { attributes, chunking_strategy: strategy }: FileFields): Promise<void> {
    const {
      max_chunk_size_tokens: maxTokens = corpusLimits.defaultChunkTokens,
      chunk_overlap_tokens: overlapTokens = 0,
    } = strategy?.static ?? {};
    const request = { fileId, attributes, chunking: { maxTokens, overlapTokens } };
    await this.#services.corpusFiles.attach(this.#corpus, [request], "file_id");
  }

  async ingested(id: string): Promise<void> {
    for (;;) {
      const { status, errorMessage } = this.#services.corpusFiles.get(this.#corpus, id);
      if (status === "completed") return;
      if (status !== "in_progress") throw new ApiError("conflict", { message: errorMessage ?? "It was cancelled." });
      await delay(pollMs, this.#signal);
      this.#signal.throwIfAborted();
    }
  }

  async detach(id: string, isOurs: boolean): Promise<void> {
    try {
      this.#services.corpusFiles.detach(this.#corpus, id, { deleteUnused: isOurs });
    } catch (error) {
      // Somebody else was faster.
      if (!(error instanceof ApiError && error.code === "not_found")) throw error;
    }
  }

  isPassing(error: unknown): boolean {
    return error instanceof ApiError && error.code === "rate_limited";
  }

  reasonOf(error: unknown): string {
    return error instanceof ApiError ? error.message : "The server had an error.";
  }
}

function storedFileOf(
  row: CorpusFileRow,
  upload: { readonly filename: string; readonly sha256: string } | undefined,
): StoredFile {
  return {
    id: row.fileId,
    status: row.status as VisibleStatus,
    attributes: row.attributes,
    chunking_strategy: {
      type: "static",
      static: { max_chunk_size_tokens: row.maxChunkTokens, chunk_overlap_tokens: row.overlapTokens },
    },
    spangate: upload && { filename: upload.filename, sha256: upload.sha256 },
  };
}
