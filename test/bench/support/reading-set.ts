/** Pages written by hand with questions about them, and when an answer counts as right. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { demoModelFolder } from "../../../gateway/cli/demo-corpora.ts";
import { CommandError } from "../../../gateway/cli/support/command.ts";

const pages = z.array(
  z.strictObject({
    title: z.string(),
    text: z.string(),
    questions: z.array(z.strictObject({ question: z.string(), answers: z.array(z.string()), answerable: z.boolean() })),
  }),
);

export type ReadingPage = z.infer<typeof pages>[number];
export type ReadingQuestion = ReadingPage["questions"][number];

/** @param file a JSON file of pages; the set that no training ever saw when absent. @throws CommandError when it is not one. */
export function readReadingPages(file = join(demoModelFolder, "eval", "pages", "handwritten.json")): ReadingPage[] {
  const parsed = pages.safeParse(JSON.parse(readFileSync(file, "utf8")));
  if (!parsed.success) throw new CommandError(`${file} is no set of pages: ${z.prettifyError(parsed.error)}`);
  return parsed.data;
}

/**
 * The page at `index` among `others` further ones, always the same for the same index: the others follow it in the
 * set at a stride, and the page stands at a place of its own among them.
 */
export function pagesAround(all: readonly ReadingPage[], index: number, others: number): ReadingPage[] {
  const page = all[index];
  if (page === undefined) throw new Error(`there is no page ${index} of ${all.length}`);
  const further = Array.from({ length: others }, (_, k) => all[(index + 7 * (k + 1)) % all.length]);
  const around = further.filter((other) => other !== undefined && other !== page) as ReadingPage[];
  around.splice(index % (around.length + 1), 0, page);
  return around;
}

export type Judgement = "right" | "refused" | "wrong";

/**
 * An answer is right when it contains one of the accepted ones as whole words, without regard to case, signs and
 * articles. What cannot be answered is right when the answer says that the documents do not say.
 */
export function judge({ answers, answerable }: ReadingQuestion, answer: string): Judgement {
  const said = comparable(answer);
  const refused = said.includes(comparable("The documents do not say"));
  if (!answerable) return refused ? "right" : "wrong";
  if (answers.some((accepted) => said.includes(comparable(accepted)))) return "right";
  return refused ? "refused" : "wrong";
}

const articles: ReadonlySet<string> = new Set(["a", "an", "the"]);

/** Words in lower case with a space on each side, so that "12" is not found in "120". */
function comparable(text: string): string {
  const words = text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return ` ${words.filter((word) => !articles.has(word)).join(" ")} `;
}
