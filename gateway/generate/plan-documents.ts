/** The documents of a prompt: those that the request holds, the files that it names or brings, and what was retrieved. */
import type { FileId, TenantId } from "../../db/ids.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import type { RetrievedFragment } from "../corpus/search/retrieve.ts";
import type { LowerDocument } from "../lower/plan.ts";

/** A document that is part of the request. */
export interface PromptDocument {
  readonly id: string;
  readonly text: string;
  readonly title?: string | undefined;
  /** Where the document's own text begins: before it stands what an API added. Absent: at its start. */
  readonly bodyAt?: number;
  /** The file that it is the text of, and its pages; absent: the request holds the text, or the text has no pages. */
  readonly filename?: string | undefined;
  readonly fileId?: FileId;
  readonly pages?: RetrievedFragment["pages"];
  /** Where the part of it ends that is in the prompt. Absent: at its end. */
  readonly bodyEnd?: number;
}

/** A file in a request, which is read before the prompt is made. */
export interface RequestFile {
  readonly id: string;
  readonly title?: string | undefined;
  /** What stands before the file's text. */
  readonly head?: string;
  readonly file: {
    /** The request's field, for errors. */
    readonly param: string;
    readonly source: { readonly fileId: string } | { readonly base64: string };
    readonly filename: string | undefined;
    readonly mediaType?: string | undefined;
  };
}

export type RequestDocument = PromptDocument | RequestFile;

/** Reads files of one request. @throws ApiError naming the field; the signal's reason */
export type ReadFiles = (
  tenantId: TenantId,
  files: readonly RequestFile["file"][],
  signal: AbortSignal,
) => Promise<readonly FileText[]>;

interface FileText extends Pick<PromptDocument, "text" | "filename" | "fileId"> {
  readonly pages: NonNullable<PromptDocument["pages"]>;
}

/** The request's documents, with the files among them read. @throws as `ReadFiles` does */
export async function readDocuments(
  documents: readonly RequestDocument[],
  read: (files: readonly RequestFile["file"][]) => ReturnType<ReadFiles>,
): Promise<readonly PromptDocument[]> {
  const files = documents.flatMap((document) => ("file" in document ? [document] : []));
  if (files.length === 0) return documents.flatMap((document) => ("file" in document ? [] : [document]));
  const texts = await read(files.map(({ file }) => file));
  const readOf = new Map(files.map((file, index) => [file, texts[index]]));
  return documents.flatMap((document): PromptDocument[] => {
    if (!("file" in document)) return [document];
    const { id, title, head = "" } = document;
    const found = readOf.get(document);
    if (found === undefined) throw new Error("a file was not read");
    const { text, pages, ...facts } = found;
    const shifted = pages.map(({ at, ...page }) => ({ at: at + head.length, ...page }));
    const own = { id, title: title ?? facts.filename, text: head + text, bodyAt: head.length };
    return [{ ...own, ...facts, ...(pages.length === 0 ? {} : { pages: shifted }) }];
  });
}

/** What an answer may rest on. */
export interface AnswerSources {
  /** The last message of the user; empty where there is none. */
  readonly question: string;
  /** Documents that came with the request. */
  readonly documents: readonly PromptDocument[];
  /** Fragments of stored files. */
  readonly retrieved: readonly CitedFragment[];
}

export type CitedFragment = Pick<RetrievedFragment, "id" | "fileId" | "filename" | "text" | "pages">;

/**
 * The request's documents under the tenant's salt, uploads under their own, then the retrieved fragments under their corpora's salts, best
 * first.
 */
export function planDocuments(
  documents: readonly PromptDocument[],
  retrieved: readonly RetrievedFragment[],
  salt: CacheSalt,
  saltOfFile: (fileId: FileId) => CacheSalt,
): readonly LowerDocument[] {
  const own = documents.map(({ id, title, text, fileId }) => {
    return { id, title, text, salt: fileId === undefined ? salt : saltOfFile(fileId) };
  });
  return [...own, ...retrieved.map(({ id, text, salt: corpusSalt }) => ({ id, text, salt: corpusSalt }))];
}
