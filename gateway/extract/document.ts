/**
 * The program of a process that reads one document of a tenant. A fault in here ends only this process. It has no
 * environment and no key, and the gateway ends it when it takes too much time or memory.
 */
import { readdirSync, writeFileSync } from "node:fs";
import { getPriority, setPriority } from "node:os";
import {
  answered,
  answerSigns,
  type DocumentText,
  type ExtractAnswer,
  type ExtractJob,
  maxPageNameChars,
  type PageStart,
  type PageText,
  Refused,
} from "./protocol.ts";

/** Makes the system end this process, and not the server, when memory runs out. Linux only. */
function offerFirst(): void {
  try {
    writeFileSync("/proc/self/oom_score_adj", "1000");
  } catch {
    // Other systems have no such setting.
  }
}

/** How much "nicer" than the server this is, whose workers are 2 nicer than it. */
const niceness = 10;

/**
 * Where the cores do not suffice for all, answers come before documents: a worker's step is as late as the last of its
 * threads. On Linux each thread has a priority of its own, and those that collect objects and compile code run by now.
 */
function giveWay(): void {
  const priority = Math.min(getPriority() + niceness, 19);
  setPriority(priority);
  for (const thread of ownThreads()) {
    try {
      setPriority(thread, priority);
    } catch {
      // The thread has ended meanwhile.
    }
  }
}

function ownThreads(): readonly number[] {
  try {
    return readdirSync("/proc/self/task").map(Number);
  } catch {
    // Other systems have one priority for the whole process.
    return [];
  }
}

/**
 * Parsers are imported only when needed, because most of the time for a small document is the start of this process.
 */
async function pagesOf(bytes: Uint8Array, job: ExtractJob): Promise<readonly PageText[]> {
  if (job.kind === "pdf") return await (await import("./pdf.ts")).pdfPages(bytes, job);
  if (job.kind === "office") return await (await import("./office.ts")).officePages(bytes, job);
  if (job.kind === "csv" || job.kind === "tsv") return [{ text: (await import("./csv.ts")).csvText(bytes, job) }];
  return [{ text: (await import("./html.ts")).htmlDocumentText(bytes, job) }];
}

/** Control characters are no part of a document's text and are not stored. */
const cleaned = (text: string): string => text.replace(/[^\P{Cc}\n\t]/gu, "").toWellFormed();

/** @throws Refused */
function joined(parts: readonly PageText[], { maxPages }: ExtractJob): DocumentText {
  const pages: PageStart[] = [];
  let text = "";
  for (const part of parts) {
    const own = cleaned(part.text).trim();
    if (own === "") continue;
    if (text !== "") text += "\n\n";
    if (part.page !== undefined) {
      const { number, name } = part.page;
      const shown = name && cleaned(name).replace(/\s+/g, " ").trim().slice(0, maxPageNameChars).toWellFormed();
      pages.push({ at: text.length, number, ...(shown ? { name: shown } : {}) });
    }
    text += own;
  }
  if (pages.length > maxPages) throw new Refused(`The file has more than ${maxPages} pages.`);
  return { text, pages };
}

async function answerOf(bytes: Uint8Array, job: ExtractJob): Promise<ExtractAnswer> {
  try {
    return joined(await pagesOf(bytes, job), job);
  } catch (error) {
    // A parser's own message may quote the document.
    return { refused: error instanceof Refused ? error.message : "The file is damaged and cannot be read." };
  }
}

offerFirst();
giveWay();
const job = JSON.parse(process.argv[2] ?? "{}") as ExtractJob;
const answer = await answerOf(await Bun.stdin.bytes(), job);
await Bun.write(Bun.stdout, "text" in answer ? answered(answer) : `${answerSigns.refused}${answer.refused}`);
process.exit(0);
