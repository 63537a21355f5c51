/** Documents that are ZIP archives of XML parts: opens them, and reads their parts. */
import { posix } from "node:path";
import { Readable } from "node:stream";
import { Parser } from "htmlparser2";
import JSZip from "jszip";
import { type ExtractJob, Refused } from "./protocol.ts";

/**
 * Unpacks the archive once and drops the result, because the sizes that it declares may be wrong.
 * @throws Refused
 */
export async function openArchive(
  bytes: Uint8Array,
  { maxParts, maxUnpackedBytes }: Pick<ExtractJob, "maxParts" | "maxUnpackedBytes">,
): Promise<JSZip> {
  const archive = await JSZip.loadAsync(bytes).catch(() => {
    throw new Refused("The file is a damaged ZIP archive.");
  });
  const parts = Object.values(archive.files);
  if (parts.length > maxParts) throw new Refused(`The file unpacks to more than ${maxParts} parts.`);
  let byteCount = 0;
  for (const part of parts) {
    for await (const piece of new Readable().wrap(part.nodeStream())) {
      byteCount += (piece as Uint8Array).byteLength;
      if (byteCount > maxUnpackedBytes) {
        throw new Refused(`The file unpacks to more than ${maxUnpackedBytes} bytes.`);
      }
    }
  }
  return archive;
}

/** The text of a part; empty: there is none. */
export async function partOf(archive: JSZip, path: string): Promise<string> {
  return (await archive.file(path)?.async("string")) ?? "";
}

export interface XmlEvents {
  readonly open?: (name: string, attributes: Readonly<Record<string, string>>) => void;
  readonly text?: (text: string) => void;
  readonly close?: (name: string) => void;
}

/** Some programs write the prefix of the main namespace, which others leave out: `x:row` in sheets, `opf:item` in books. */
const plainName = (name: string): string => name.replace(/^(?:x|opf):/, "");

/** Reads XML in one pass, without a tree. Entities that a document type declares are not replaced. */
export function readXml(xml: string, { open, text, close }: XmlEvents): void {
  const parser = new Parser(
    {
      onopentag: (name, attributes) => open?.(plainName(name), attributes),
      ontext: (part) => text?.(part),
      onclosetag: (name) => close?.(plainName(name)),
    },
    { xmlMode: true },
  );
  parser.end(xml);
}

/** The elements of one name, by their attributes. */
export function elementsOf(xml: string, wanted: string): Readonly<Record<string, string>>[] {
  const found: Readonly<Record<string, string>>[] = [];
  readXml(xml, { open: (name, attributes) => name === wanted && found.push(attributes) });
  return found;
}

/** The parts that a part of an Office document refers to, by the ids of the relationships. */
export async function relatedParts(archive: JSZip, path: string): Promise<ReadonlyMap<string, string>> {
  const folder = posix.dirname(path);
  const relationships = await partOf(archive, posix.join(folder, "_rels", `${posix.basename(path)}.rels`));
  return new Map(
    elementsOf(relationships, "Relationship").map(({ Id = "", Target = "" }) => [
      Id,
      Target.startsWith("/") ? Target.slice(1) : posix.join(folder, Target),
    ]),
  );
}
