/** A fragment that a search found, whatever it was ranked by. */
import type { FileId, FragmentId } from "./ids.ts";
import type { Attributes, FragmentPage } from "./schema.ts";

export interface Hit {
  readonly id: FragmentId;
  readonly seq: number;
  readonly fileId: FileId;
  readonly filename: string;
  readonly attributes: Attributes;
  readonly text: string;
  /** Pages of the file that the text stands on; absent where the file has none. */
  readonly pages?: readonly FragmentPage[];
}

/** The columns that a search selects: of a fragment `f`, its corpus file `cf` and that one's file `fi`. */
export const hitColumns = "f.id, f.seq, cf.file_id, fi.filename, cf.attributes, f.text, f.pages";

export interface HitRow extends Omit<Hit, "fileId" | "attributes" | "pages"> {
  readonly file_id: FileId;
  /** JSON. */
  readonly attributes: string;
  /** JSON. */
  readonly pages: string | null;
}

export function hitOf({ id, seq, file_id: fileId, filename, attributes, text, pages }: HitRow): Hit {
  const hit = { id, seq, fileId, filename, attributes: JSON.parse(attributes) as Attributes, text };
  return pages === null ? hit : { ...hit, pages: JSON.parse(pages) as readonly FragmentPage[] };
}
