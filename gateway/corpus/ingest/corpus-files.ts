/** The files that are attached to a corpus. Each is ingested once, in the background. */
import { type CorpusRow, type FileCounts, findCorpus, updateCorpus } from "../../../db/corpora.ts";
import {
  attachFile,
  type CorpusFileFilter,
  type CorpusFileRow,
  cancelFileBatch,
  countPendingFiles,
  type FileBatchRow,
  fileBatchCounts,
  findCorpusFile,
  findFileBatch,
  insertFileBatch,
  isAttached,
  listCorpusFiles,
  markCorpusFileDeleting,
  updateFileAttributes,
} from "../../../db/corpus-files.ts";
import { type FileRow, findFiles, markFileDeleted } from "../../../db/files.ts";
import { listFragmentTexts } from "../../../db/fragments.ts";
import { type FileId, newId, parseId, type TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import type { Page, PageRange } from "../../../db/page.ts";
import type { Attributes } from "../../../db/schema.ts";
import { ApiError } from "../../base/errors.ts";
import { Pace } from "../../base/pace.ts";
import { corpusLimits } from "../base/limits.ts";
import type { Chunking } from "./chunk.ts";

export interface AttachRequest {
  readonly fileId: string;
  readonly attributes: Attributes;
  readonly chunking: Chunking;
}

export interface CorpusFileEvents {
  /** Called when files wait for ingestion. */
  attached(): void;
  /** Called when files have become invisible and can be swept; with `isFileDeleted` the uploads too. */
  detached(tenantId: TenantId, deletedId: FileId | undefined): void;
  /** Called when waiting files are not to be ingested any more. */
  cancelled(): void;
}

/** Files that are attached in one transaction; more would block the event loop for too long. */
const filesPerSlice = 50;

export class CorpusFileService {
  readonly #db: Db;
  readonly #events: CorpusFileEvents;

  constructor(db: Db, events: CorpusFileEvents) {
    this.#db = db;
    this.#events = events;
  }

  /**
   * Attaches files; resolves when they are durable. The call may be repeated: a file that is attached already stays as
   * it is.
   * @param param the request's field that names the files, for errors
   * @throws ApiError not_found (a file is not the tenant's), quota_exceeded
   */
  async attach(
    corpus: CorpusRow,
    requests: readonly AttachRequest[],
    param: string,
  ): Promise<readonly CorpusFileRow[]> {
    this.requireFiles(corpus.tenantId, requests, param);
    const pending = countPendingFiles(this.#db, corpus.tenantId) + requests.length;
    if (pending > corpusLimits.maxPendingFilesPerTenant) {
      const message = "Too many files of this tenant are waiting to be ingested.";
      throw new ApiError("rate_limited", { param, message, retryAfterS: 10 });
    }
    const rows: CorpusFileRow[] = [];
    const pace = new Pace();
    for (let at = 0; at < requests.length; at += filesPerSlice) {
      rows.push(...this.#attachSlice(corpus, requests.slice(at, at + filesPerSlice), param));
      await pace.breathe();
    }
    this.#events.attached();
    return rows;
  }

  /** @throws ApiError not_found with `param` when one of the files is not the tenant's */
  requireFiles(
    tenantId: TenantId,
    requests: readonly Pick<AttachRequest, "fileId">[],
    param: string,
  ): readonly FileId[] {
    const ids = requests.map(({ fileId }) => parseId("file", fileId));
    const wellFormed = ids.filter((id) => id !== undefined);
    const known = new Set(findFiles(this.#db, tenantId, wellFormed).map((row) => row.id));
    if (wellFormed.length === ids.length && wellFormed.every((id) => known.has(id))) return wellFormed;
    throw new ApiError("not_found", { param, message: "No such file." });
  }

  /** @throws ApiError not_found */
  get(corpus: CorpusRow, rawFileId: string): CorpusFileRow {
    const id = parseId("file", rawFileId);
    const row = id === undefined ? undefined : findCorpusFile(this.#db, corpus.id, id);
    if (row === undefined) throw new ApiError("not_found");
    return row;
  }

  list(corpus: CorpusRow, range: PageRange & CorpusFileFilter): Page<CorpusFileRow> {
    return listCorpusFiles(this.#db, corpus.id, range);
  }

  /** What was uploaded, by the ids of attached files of one corpus. */
  uploadsOf(rows: readonly CorpusFileRow[]): ReadonlyMap<FileId, FileRow> {
    const [first] = rows;
    if (first === undefined) return new Map();
    const ids = rows.map((row) => row.fileId);
    return new Map(findFiles(this.#db, first.tenantId, ids).map((file) => [file.id, file]));
  }

  /** @throws ApiError not_found */
  updateAttributes(corpus: CorpusRow, rawFileId: string, attributes: Attributes): CorpusFileRow {
    const updated = updateFileAttributes(this.#db, this.get(corpus, rawFileId).seq, attributes);
    if (updated === undefined) throw new ApiError("not_found");
    return updated;
  }

  /** The file's text as it was split; empty until the file is completed. @throws ApiError not_found */
  texts(corpus: CorpusRow, rawFileId: string): readonly string[] {
    const row = this.get(corpus, rawFileId);
    return row.status === "completed" ? listFragmentTexts(this.#db, row.seq) : [];
  }

  /**
   * Detaches a file: it is gone from the corpus at once.
   * @param deleteUnused whether the uploaded file goes too, in the same transaction, when no other corpus has it;
   *   otherwise it stays
   * @throws ApiError not_found
   */
  detach(corpus: CorpusRow, rawFileId: string, { deleteUnused = false } = {}): FileId {
    const { seq, fileId, tenantId } = this.get(corpus, rawFileId);
    const isFileDeleted = this.#db.transaction("detachFile", () => {
      markCorpusFileDeleting(this.#db, seq);
      if (!deleteUnused || isAttached(this.#db, fileId)) return false;
      return markFileDeleted(this.#db, tenantId, fileId, Date.now());
    });
    this.#events.detached(tenantId, isFileDeleted ? fileId : undefined);
    return fileId;
  }

  async createBatch(corpus: CorpusRow, requests: readonly AttachRequest[], param: string): Promise<FileBatchRow> {
    const rows = await this.attach(corpus, requests, param);
    const batch = { id: newId("fileBatch"), corpusId: corpus.id, createdAt: Date.now() };
    const members = rows.map((row) => row.seq);
    return this.#db.transaction("createBatch", () => {
      requireLive(this.#db, corpus);
      return insertFileBatch(this.#db, batch, members);
    });
  }

  /** @throws ApiError not_found */
  getBatch(corpus: CorpusRow, rawBatchId: string): { row: FileBatchRow; counts: FileCounts } {
    const id = parseId("fileBatch", rawBatchId);
    const row = id === undefined ? undefined : findFileBatch(this.#db, corpus.id, id);
    if (row === undefined) throw new ApiError("not_found");
    return { row, counts: fileBatchCounts(this.#db, row.id) };
  }

  /** Cancels the files of the batch that are not ingested yet. @throws ApiError not_found */
  cancelBatch(corpus: CorpusRow, rawBatchId: string): { row: FileBatchRow; counts: FileCounts } {
    const { row } = this.getBatch(corpus, rawBatchId);
    cancelFileBatch(this.#db, row.id);
    this.#events.cancelled();
    return this.getBatch(corpus, rawBatchId);
  }

  #attachSlice(corpus: CorpusRow, requests: readonly AttachRequest[], param: string): CorpusFileRow[] {
    const now = Date.now();
    return this.#db.transaction("attachFiles", () => {
      // The files are looked up for each slice, because the corpus or a file may have been deleted since the previous
      // one.
      const fileIds = this.requireFiles(corpus.tenantId, requests, param);
      requireLive(this.#db, corpus);
      updateCorpus(this.#db, corpus.id, { lastActiveAt: now });
      return requests.map(({ attributes, chunking }, index) =>
        attachFile(this.#db, {
          corpusId: corpus.id,
          fileId: fileIds[index] as FileId,
          tenantId: corpus.tenantId,
          attributes,
          maxChunkTokens: chunking.maxTokens,
          overlapTokens: chunking.overlapTokens,
          createdAt: now,
        }),
      );
    });
  }
}

function requireLive(db: Db, corpus: CorpusRow): void {
  if (findCorpus(db, corpus.tenantId, corpus.id, "own") === undefined) throw new ApiError("not_found");
}
