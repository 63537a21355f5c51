/** A tenant with a corpus and one file in it, whose fragments have these texts; the file is still being ingested. */
import { insertCorpus } from "../../db/corpora.ts";
import { attachFile } from "../../db/corpus-files.ts";
import { insertFileOnce } from "../../db/files.ts";
import { insertFragments } from "../../db/fragments.ts";
import { newId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import { insertTenant } from "../../db/tenants.ts";

const createdAt = 1;

export function tenantWithFile(db: Db, texts: readonly string[]) {
  const { id: tenantId } = insertTenant(db, { id: newId("tenant"), name: "a", createdAt });
  const fields = { tenantId, createdAt };
  const corpus = insertCorpus(db, { id: newId("corpus"), name: "", description: null, metadata: {}, ...fields });
  const content = { filename: "a.txt", purpose: "assistants", mediaType: "text/plain", byteCount: 1, sha256: "x" };
  const file = insertFileOnce(db, { id: newId("file"), ...content, ...fields });
  if (corpus === undefined || file === undefined) throw new Error("not inserted");
  const ids = { corpusId: corpus.id, fileId: file.id, ...fields };
  const attached = attachFile(db, { ...ids, attributes: {}, maxChunkTokens: 16, overlapTokens: 0 });
  const rows = texts.map((text, ordinal) => {
    return { id: newId("fragment"), ordinal, text, firstChar: 0, endChar: text.length, tokenCount: 1 };
  });
  insertFragments(db, corpus.seq, attached, rows);
  return { tenantId, corpus, file, attached, rows };
}
