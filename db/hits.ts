/** A fragment that a search found, whatever it was ranked by. */
import type { FileId, FragmentId } from "./ids.ts";
import type { Attributes } from "./schema.ts";

export interface Hit {
  readonly id: FragmentId;
  readonly seq: number;
  readonly fileId: FileId;
  readonly filename: string;
  readonly attributes: Attributes;
  readonly text: string;
}

/** The columns that a search selects: of a fragment `f`, its corpus file `cf` and that one's file `fi`. */
export const hitColumns = "f.id, f.seq, cf.file_id, fi.filename, cf.attributes, f.text";

export interface HitRow extends Omit<Hit, "fileId" | "attributes"> {
  readonly file_id: FileId;
  /** JSON. */
  readonly attributes: string;
}

export function hitOf({ id, seq, file_id: fileId, filename, attributes, text }: HitRow): Hit {
  return { id, seq, fileId, filename, attributes: JSON.parse(attributes) as Attributes, text };
}
