/** Reads lists in XML, as sitemaps and S3 have them: a root, records in it, and texts in those. */
import { Parser } from "htmlparser2";

export interface XmlRecord {
  readonly name: string;
  readonly fields: ReadonlyMap<string, string>;
}

export interface XmlList {
  /** The root's name. */
  readonly root: string;
  /** Texts right below the root. */
  readonly fields: ReadonlyMap<string, string>;
  readonly records: readonly XmlRecord[];
}

/** What sitemaps.org allows of one sitemap; a page of an S3 list has a thousand. */
const maxRecords = 50_000;
const maxFieldChars = 4_096;
/** A text that is kept keeps the whole string that it was cut from, and counts as that large when garbage is collected. */
const pieceBytes = 16 * 1024;

/** @param wanted names of the texts that are read; longer ones and further records are left out */
export function readXml(bytes: Uint8Array, wanted: ReadonlySet<string>): XmlList {
  const path: string[] = [];
  const fields = new Map<string, string>();
  const records: { readonly name: string; readonly fields: Map<string, string> }[] = [];
  let root = "";
  let text = "";
  const parser = new Parser(
    {
      onopentag(name) {
        path.push(name);
        text = "";
        if (path.length === 1) root = name;
        if (path.length === 2 && records.length < maxRecords) records.push({ name, fields: new Map() });
      },
      ontext(part) {
        if (text.length <= maxFieldChars) text += part;
      },
      onclosetag(name) {
        const into = path.length === 2 ? fields : path.length === 3 ? records.at(-1)?.fields : undefined;
        if (wanted.has(name) && text.length <= maxFieldChars) into?.set(name, text);
        path.pop();
        text = "";
      },
    },
    { xmlMode: true },
  );
  const decoder = new TextDecoder();
  for (let at = 0; at < bytes.byteLength; at += pieceBytes) {
    parser.write(decoder.decode(bytes.subarray(at, at + pieceBytes), { stream: true }));
  }
  parser.end(decoder.decode());
  return { root, fields, records };
}
