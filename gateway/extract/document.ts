/**
 * The program of a process that reads one document of a tenant. A fault in here ends only this process. It has no
 * environment and no key, and the gateway ends it when it takes too much time or memory.
 */
import { writeFileSync } from "node:fs";
import { answerSigns, type ExtractAnswer, type ExtractJob, Refused } from "./protocol.ts";

/** Makes the system end this process, and not the server, when memory runs out. Linux only. */
function offerFirst(): void {
  try {
    writeFileSync("/proc/self/oom_score_adj", "1000");
  } catch {
    // Other systems have no such setting.
  }
}

/**
 * Parsers are imported only when needed, because most of the time for a small document is the start of this process.
 */
async function textOf(bytes: Uint8Array, job: ExtractJob): Promise<string> {
  if (job.kind === "pdf") return await (await import("./pdf.ts")).pdfText(bytes, job);
  if (job.kind === "office") return await (await import("./office.ts")).officeText(bytes, job);
  if (job.kind === "csv" || job.kind === "tsv") return (await import("./csv.ts")).csvText(bytes, job);
  return (await import("./html.ts")).htmlDocumentText(bytes, job);
}

async function answerOf(bytes: Uint8Array, job: ExtractJob): Promise<ExtractAnswer> {
  try {
    const text = await textOf(bytes, job);
    // Control characters are no part of a document's text and are not stored.
    return {
      text: text
        .replace(/[^\P{Cc}\n\t]/gu, "")
        .toWellFormed()
        .trim(),
    };
  } catch (error) {
    // A parser's own message may quote the document.
    return { refused: error instanceof Refused ? error.message : "The file is damaged and cannot be read." };
  }
}

offerFirst();
const job = JSON.parse(process.argv[2] ?? "{}") as ExtractJob;
const answer = await answerOf(await Bun.stdin.bytes(), job);
await Bun.write(
  Bun.stdout,
  "text" in answer ? `${answerSigns.text}${answer.text}` : `${answerSigns.refused}${answer.refused}`,
);
process.exit(0);
