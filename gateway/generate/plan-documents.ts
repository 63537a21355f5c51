/** What a prompt has of documents. */
import type { CacheSalt } from "../../worker/contract/units.ts";
import type { RetrievedFragment } from "../corpus/search/retrieve.ts";
import type { LowerDocument } from "../lower/plan.ts";
import type { PromptRequest } from "./pipeline.ts";

/** Documents of the request with the tenant's salt, then fragments with their corpora's, best first. */
export function planDocuments(
  request: Pick<PromptRequest, "documents">,
  retrieved: readonly RetrievedFragment[],
  salt: CacheSalt,
): readonly LowerDocument[] {
  const own = request.documents.map((document) => ({ ...document, salt }));
  return [...own, ...retrieved.map(({ id, text, salt: corpusSalt }) => ({ id, text, salt: corpusSalt }))];
}
