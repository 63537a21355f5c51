/**
 * A process of its own for one document of a tenant's: what goes wrong in here, goes wrong here alone. It has no
 * environment and no key, and whoever started it ends it when it takes too long or too much.
 */
import { writeFileSync } from "node:fs";
import { answerSigns, type ExtractAnswer, type ExtractJob, Refused } from "./protocol.ts";

/** When memory runs out, the system ends this process and not the server. Linux only. */
function offerFirst(): void {
  try {
    writeFileSync("/proc/self/oom_score_adj", "1000");
  } catch {
    // Elsewhere there is no such thing.
  }
}

/** A parser is loaded where it is needed: most of what a small document takes is the start of this process. */
async function textOf(bytes: Uint8Array, job: ExtractJob): Promise<string> {
  if (job.kind === "pdf") return await (await import("./pdf.ts")).pdfText(bytes, job);
  if (job.kind === "docx") return await (await import("./docx.ts")).docxText(bytes, job);
  return (await import("./html.ts")).htmlDocumentText(bytes, job);
}

async function answerOf(bytes: Uint8Array, job: ExtractJob): Promise<ExtractAnswer> {
  try {
    const text = await textOf(bytes, job);
    // What a document holds beside characters: no part of its text, and not to be stored.
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
