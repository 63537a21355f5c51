/** Documents read in a process of their own, also such as are made to break it. */
import { describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { getPriority } from "node:os";
import { deflateSync } from "node:zlib";
import { FileError } from "../../../gateway/corpus/ingest/decode.ts";
import { type ExtractLimits, Extractor } from "../../../gateway/corpus/ingest/extractor.ts";
import { ReaderProgram } from "../../../gateway/corpus/ingest/reader-program.ts";
import type { DocumentKind } from "../../../gateway/extract/protocol.ts";
import { docxOf, paragraph, pdfOf, pdfPage } from "../../extract/documents.ts";

const program = new ReaderProgram();
const mib = 1024 * 1024;
const usual: ExtractLimits = {
  maxTextChars: mib,
  maxPages: 100,
  maxUnpackedBytes: 8 * mib,
  maxParts: 64,
  maxMs: 20_000,
  maxMemoryBytes: 1024 * mib,
};

const read = (kind: DocumentKind, bytes: Uint8Array, limits: Partial<ExtractLimits> = {}) =>
  new Extractor({ ...usual, ...limits }, program).extract(kind, bytes, new AbortController().signal);

const extract = async (...args: Parameters<typeof read>): Promise<string> => (await read(...args)).text;

async function refusal(kind: DocumentKind, bytes: Uint8Array, limits: Partial<ExtractLimits> = {}): Promise<string> {
  const error = await extract(kind, bytes, limits).then(
    (text) => new Error(`no refusal, but ${text.length} characters`),
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(FileError);
  expect((error as FileError).code).toBe("invalid_file");
  return (error as FileError).message;
}

describe("documents", () => {
  test("a PDF's pages, paragraphs and accents", async () => {
    const first = pdfPage("Anna has a cat. The cat is", "called Tom.", "", "A second paragraph.");
    expect(await extract("pdf", pdfOf([first, pdfPage("Caf\\351 on page two.")]))).toBe(
      "Anna has a cat. The cat is called Tom.\n\nA second paragraph.\n\nCafé on page two.",
    );
  });

  test("a DOCX's headings, paragraphs and tables", async () => {
    const cell = (text: string) => `<w:tc>${paragraph(text)}</w:tc>`;
    const table = `<w:tbl><w:tr>${cell("x")}${cell("y")}</w:tr></w:tbl>`;
    const body = `${paragraph("Pets", "Heading1")}${paragraph("Anna &amp; Tom &lt;b&gt;.")}${table}`;
    expect(await extract("office", await docxOf(body))).toBe("# Pets\n\nAnna & Tom <b>.\n\nx | y");
    // Word for the web calls it so.
    expect(await extract("office", await docxOf(paragraph("a"), {}, "word/document2.xml"))).toBe("a");
  });

  test("control characters and half surrogates do not come through", async () => {
    expect(await extract("html", new TextEncoder().encode("<p>a\u0001b\u0085c &#xD800; d\te"))).toBe("abc \ufffd d e");
  });
});

test.if(process.platform === "linux")("a document is read with a lower priority than the server has", async () => {
  const reading = extract("csv", new TextEncoder().encode(`x,y\n${"a,b\n".repeat(80_000)}`));
  const seen = new Set<number>();
  const watch = setInterval(() => {
    const priorities = readersOf(process.pid).flatMap(threadsOf).flatMap(priorityOf);
    if (priorities.length > 1) seen.add(Math.min(...priorities));
  }, 5);
  expect(await reading).toStartWith("x: a | y: b\n");
  clearInterval(watch);
  // It starts with that of the server. On Linux each thread has its own.
  expect([...seen].at(-1)).toBe(Math.min(getPriority() + 10, 19));
});

/** Of one that has ended meanwhile: none. */
const threadsOf = (pid: number): number[] => seenOf(() => readdirSync(`/proc/${pid}/task`).map(Number));
const priorityOf = (thread: number): number[] => seenOf(() => [getPriority(thread)]);

function seenOf(look: () => number[]): number[] {
  try {
    return look();
  } catch {
    return [];
  }
}

/** Processes of this one that read a document. */
function readersOf(parentId: number): number[] {
  const isReader = (pid: string): boolean => {
    try {
      const parent = / [A-Z] (\d+) /.exec(readFileSync(`/proc/${pid}/stat`, "utf8"))?.[1];
      return Number(parent) === parentId && readFileSync(`/proc/${pid}/cmdline`, "utf8").includes('"kind":');
    } catch {
      return false;
    }
  };
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name) && isReader(name))
    .map(Number);
}

describe("bad documents say why", () => {
  test("damaged, locked, empty, or something else", async () => {
    expect(await refusal("pdf", new TextEncoder().encode("%PDF-1.7 nothing"))).toContain("damaged");
    expect(await refusal("pdf", pdfOf([pdfPage()]))).toContain("no text");
    expect(await refusal("pdf", lockedPdf())).toContain("password");
    const whole = await docxOf(paragraph("x"));
    expect(await refusal("office", whole.subarray(0, whole.length / 2))).toContain("damaged ZIP");
    expect(await refusal("office", await docxOf("<w:p><w:r>"))).toContain("damaged");
    const other = await (await import("jszip")).default.loadAsync(whole);
    other.remove("word/document.xml");
    expect(await refusal("office", await other.generateAsync({ type: "uint8array" }))).toContain("no DOCX");
  });

  test("too many pages, too much text", async () => {
    const pages = Array.from({ length: 4 }, () => pdfPage("Some words."));
    expect(await refusal("pdf", pdfOf(pages), { maxPages: 3 })).toContain("more than 3 pages");
    expect(await refusal("pdf", pdfOf(pages), { maxTextChars: 20 })).toContain("more than 20 characters");
    expect(await refusal("office", await docxOf(paragraph("x".repeat(50))), { maxTextChars: 20 })).toContain("20 char");
  });
});

describe("bombs", () => {
  test("a DOCX that unpacks to far more than it is, in one part or in many", async () => {
    const zeros = await docxOf(paragraph("x"), { "word/media/image1.png": new Uint8Array(64 * mib) });
    expect(zeros.byteLength).toBeLessThan(mib / 2);
    expect(await refusal("office", zeros)).toContain(`unpacks to more than ${usual.maxUnpackedBytes} bytes`);
    const parts = Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`word/part${i}`, "x"]));
    expect(await refusal("office", await docxOf(paragraph("x"), parts))).toContain("more than 64 parts");
  });

  test("a DOCX whose archive says that its parts are small", async () => {
    const zeros = await docxOf(paragraph("x"), { "word/media/a.png": new Uint8Array(32 * mib) });
    const lying = Buffer.from(zeros);
    const size = Buffer.alloc(4);
    size.writeUInt32LE(32 * mib);
    for (let at = lying.indexOf(size); at >= 0; at = lying.indexOf(size, at + 1)) lying.writeUInt32LE(7, at);
    expect(await refusal("office", lying)).toMatch(/unpacks to more than|damaged/);
  });

  test("a DOCX nested without end, and one with entities that multiply", async () => {
    expect(await refusal("office", await docxOf("<w:sdt><w:sdtContent>".repeat(100_000)))).toContain("cannot be read");
    const entities = Array.from({ length: 12 }, (_, i) => `<!ENTITY e${i + 1} "${`&e${i};`.repeat(10)}">`).join("");
    const xml = `<!DOCTYPE d [<!ENTITY e0 "ha">${entities}]><w:document xmlns:w="x"><w:body>&e12;</w:body></w:document>`;
    const laughs = await docxOf("", { "word/document.xml": xml });
    const answer = await extract("office", laughs).catch((error: Error) => error.message);
    expect(answer.length).toBeLessThan(200);
  });

  test("a PDF whose page unpacks to more memory than it may take, or than the time for it", async () => {
    const once = "BT /F1 12 Tf (a lot) Tj ET ";
    const bomb = pdfOf([deflateSync(Buffer.alloc(300 * mib, once), { level: 1 })]);
    const memory = await refusal("pdf", bomb, { maxMemoryBytes: 400 * mib, maxTextChars: 8 * mib });
    expect(memory).toContain("memory");
    expect(await refusal("pdf", bomb, { maxMs: 300 })).toContain("longer than 0.3 s");
  }, 60_000);
});

test("an abort ends the process at once, and is no fault of the file", async () => {
  const controller = new AbortController();
  const bytes = pdfOf([pdfPage("Words.")]);
  const running = new Extractor(usual, program).extract("pdf", bytes, controller.signal);
  controller.abort(new Error("stopped"));
  await expect(running).rejects.toThrow("stopped");
});

/** The standard security handler with a user password that is not empty: its check cannot pass. */
function lockedPdf(): Uint8Array {
  const junk = createHash("sha256").update("some password").digest("hex");
  const encrypt = `/Encrypt << /Filter /Standard /V 2 /R 3 /Length 128 /P -4 /O <${junk}> /U <${junk}> >>`;
  return pdfOf([pdfPage("Secret.")], `${encrypt} /ID [<00112233445566778899aabbccddeeff> <00>]`);
}
