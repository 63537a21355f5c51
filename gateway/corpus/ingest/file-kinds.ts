/** Finds out how a file is read: by its first bytes, its name, or its media type. */
import type { DocumentKind } from "../../extract/protocol.ts";
import { FileError } from "./decode.ts";
import type { TextKind } from "./sentences.ts";

export type FileKind = TextKind | DocumentKind;

/** The ends of names, or whole names of files without an end, by kind. */
const namesByKind: Readonly<Record<FileKind, string>> = {
  plain: "txt text license readme changelog authors notice",
  markdown: "md markdown mdx mdc rmd qmd",
  lines: [
    "log json jsonl ndjson json5 jsonc geojson ipynb yaml yml toml xml xsd xsl xslt rss atom wsdl ini cfg conf",
    "properties env editorconfig gitignore gitattributes dockerignore diff patch srt vtt tex bib rst adoc org",
    "ts tsx mts cts js jsx mjs cjs vue svelte astro css scss sass less py pyi rb php pl pm lua r jl java kt kts",
    "scala groovy gradle clj cljs ex exs erl hrl hs ml mli fs fsx cs vb go rs zig nim d swift m mm dart c h cc cpp",
    "cxx hpp hh cu cuh asm s f90 f95 sol v sv vhd sh bash zsh fish ps1 bat cmd sql graphql gql proto thrift tf hcl",
    "nix cmake mk dockerfile containerfile makefile justfile rakefile gemfile jenkinsfile",
  ].join(" "),
  csv: "csv",
  tsv: "tsv tab",
  html: "html htm xhtml",
  pdf: "pdf",
  office: "docx pptx xlsx epub odt ods odp",
};

const mediaTypesByKind: Readonly<Record<FileKind, string>> = {
  plain: "text/plain",
  markdown: "text/markdown text/x-markdown",
  lines: [
    "application/json application/x-ndjson application/ndjson application/jsonl application/x-jsonlines",
    "application/yaml application/x-yaml application/toml application/xml application/javascript",
    "application/x-javascript application/typescript application/sql application/graphql application/x-sh",
    "application/x-python application/x-httpd-php",
  ].join(" "),
  csv: "text/csv application/csv text/x-csv",
  tsv: "text/tab-separated-values",
  html: "text/html application/xhtml+xml",
  pdf: "application/pdf",
  office: [
    ...["wordprocessingml.document", "presentationml.presentation", "spreadsheetml.sheet"].map(
      (name) => `application/vnd.openxmlformats-officedocument.${name}`,
    ),
    ...["text", "spreadsheet", "presentation"].map((name) => `application/vnd.oasis.opendocument.${name}`),
    "application/epub+zip",
  ].join(" "),
};

// Maps, because a plain object would also find inherited names such as "constructor".
const kindsOf = (names: Readonly<Record<FileKind, string>>): ReadonlyMap<string, FileKind> =>
  new Map(
    (Object.keys(names) as FileKind[]).flatMap((kind) => names[kind].split(" ").map((name) => [name, kind] as const)),
  );
const kindByName = kindsOf(namesByKind);
const kindByMediaType = kindsOf(mediaTypesByKind);

/** Formats and languages that text stands in, whatever their names: `text/x-python`, `application/geo+json`. */
const textMediaType = /^(?:text\/[\w.+-]+|[a-z]+\/[\w.-]+\+(?:json|xml|yaml))$/;

function kindOfMediaType(essence: string): FileKind | undefined {
  return kindByMediaType.get(essence) ?? (textMediaType.test(essence) ? "lines" : undefined);
}

/** Bytes of a file's beginning that tell what it is. */
export const signatureBytes = 1_024;

/**
 * The kind of a file by its first bytes. "office": any ZIP archive. "old": a document of an office program from before
 * these were archives, or one with a password.
 */
function signatureOf(bytes: Uint8Array): "pdf" | "office" | "old" | "html" | undefined {
  const head = Buffer.from(bytes.subarray(0, signatureBytes)).toString("latin1");
  if (head.startsWith("PK\x03\x04")) return "office";
  if (head.startsWith("\xd0\xcf\x11\xe0")) return "old";
  // Some programs write blank space before the signature.
  if (/^(?:\xef\xbb\xbf)?\s*%PDF-/.test(head)) return "pdf";
  return /^(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html)\b/i.test(head) ? "html" : undefined;
}

/**
 * The kind of a file. PDF and documents of office programs are recognized by their content, whatever the name. Text has no signature, so it is
 * recognized by the end of its name, or by the media type if that tells nothing.
 * @throws FileError unsupported_file, invalid_file
 */
export function fileKindOf(filename: string, mediaType: string, bytes: Uint8Array): FileKind {
  const signature = signatureOf(bytes);
  if (signature === "pdf" || signature === "office") return signature;
  if (signature === "old") {
    throw new FileError(
      "unsupported_file",
      "Old Word files (.doc, also .xls and .ppt) and those with a password are not supported.",
    );
  }
  const basename = filename.split(/[/\\]/).at(-1)?.toLowerCase() ?? "";
  const extension = /\.([^.]{1,16})$/.exec(basename)?.[1];
  const essence = mediaType.split(";")[0]?.trim().toLowerCase() ?? "";
  const byName = kindByName.get(extension ?? basename);
  const named = byName ?? kindOfMediaType(essence);
  if (named === "pdf" || named === "office") {
    const [what, such] =
      byName === undefined
        ? [essence, named === "pdf" ? "PDF" : "ZIP archive"]
        : [`.${extension}`, extension?.toUpperCase()];
    throw new FileError("invalid_file", `The file is named ${what}, but it is no ${such}.`);
  }
  const kind = named ?? signature;
  if (kind !== undefined) return kind;
  const what = extension === undefined ? `media type ${essence || "unknown"}` : `extension .${extension}`;
  const supported =
    "Text in UTF-8 (Markdown, CSV, JSON, YAML, XML, source code), HTML, PDF, DOCX, PPTX, XLSX, EPUB and OpenDocument are.";
  throw new FileError("unsupported_file", `Files of this type are not supported (${what}). ${supported}`);
}

/** What the text of a file is, by its name alone; prose where that tells nothing. */
export function textKindOf(filename: string): TextKind {
  const basename = filename.split(/[/\\]/).at(-1)?.toLowerCase() ?? "";
  const kind = kindByName.get(/\.([^.]{1,16})$/.exec(basename)?.[1] ?? basename);
  return kind === "lines" || kind === "csv" || kind === "tsv" ? "lines" : "markdown";
}
