import type { FilePieces } from "../../gateway/corpus/files/content-store.ts";

/** All bytes of a small file. */
export async function wholeFile(opening: Promise<FilePieces>): Promise<Buffer> {
  const pieces = await opening;
  try {
    return Buffer.from(pieces.read(0, pieces.byteLength));
  } finally {
    await pieces.close();
  }
}
