/** The documents of a prompt: those that the request holds and those that were retrieved. */
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
  /** Where the part of it ends that is in the prompt. Absent: at its end. */
  readonly bodyEnd?: number;
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
 * The request's documents under the tenant's salt, then the retrieved fragments under their corpora's salts, best
 * first.
 */
export function planDocuments(
  documents: readonly PromptDocument[],
  retrieved: readonly RetrievedFragment[],
  salt: CacheSalt,
): readonly LowerDocument[] {
  const own = documents.map((document) => ({ ...document, salt }));
  return [...own, ...retrieved.map(({ id, text, salt: corpusSalt }) => ({ id, text, salt: corpusSalt }))];
}
