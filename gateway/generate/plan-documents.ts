/** The documents of a prompt: the request's own, and those that were retrieved. */
import type { CacheSalt } from "../../worker/contract/units.ts";
import type { RetrievedFragment } from "../corpus/search/retrieve.ts";
import type { LowerDocument } from "../lower/plan.ts";

/** A document that a request brings with it. */
export interface PromptDocument {
  readonly id: string;
  readonly text: string;
  readonly title?: string | undefined;
}

/** Documents of the request with the tenant's salt, then fragments with their corpora's, best first. */
export function planDocuments(
  documents: readonly PromptDocument[],
  retrieved: readonly RetrievedFragment[],
  salt: CacheSalt,
): readonly LowerDocument[] {
  const own = documents.map((document) => ({ ...document, salt }));
  return [...own, ...retrieved.map(({ id, text, salt: corpusSalt }) => ({ id, text, salt: corpusSalt }))];
}
