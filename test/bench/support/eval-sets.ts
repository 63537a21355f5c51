/** The demo model's evaluation sets: documents, questions about them, and the answers that count as right. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { demoModelFolder } from "../../../gateway/cli/demo-corpora.ts";
import { CommandError } from "../../../gateway/cli/support/command.ts";
import type { ChatRequest } from "../../../gateway/cli/support/operations.ts";

interface EvalSet {
  readonly name: string;
  readonly samples: readonly {
    readonly system: string;
    readonly documents: readonly string[];
    readonly turns: readonly { readonly question: string; readonly answer: string }[];
  }[];
}

/** One question, asked alone over its sample's documents. */
export interface EvalQuestion {
  readonly set: string;
  readonly system: string;
  readonly documents: readonly { readonly text: string }[];
  readonly question: string;
  readonly answer: string;
}

/**
 * @param names which sets; all when empty
 * @param folder of the sets; default: the demo model's
 * @throws CommandError for a set that is not there
 */
export function readEvalQuestions(
  names: readonly string[] = [],
  folder: string = join(demoModelFolder, "eval"),
): EvalQuestion[] {
  const known = readdirSync(folder)
    .filter((file) => file.endsWith(".json.gz"))
    .map((file) => file.replace(/\.json\.gz$/, ""))
    .sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const unknown = names.find((name) => !known.includes(name));
  if (unknown !== undefined) throw new CommandError(`no evaluation set "${unknown}"; there are ${known.join(", ")}`);
  return known
    .filter((name) => names.length === 0 || names.includes(name))
    .flatMap((name) => questionsOf(readSet(join(folder, `${name}.json.gz`))));
}

function readSet(path: string): EvalSet {
  return JSON.parse(new TextDecoder().decode(Bun.gunzipSync(readFileSync(path)))) as EvalSet;
}

function questionsOf({ name, samples }: EvalSet): EvalQuestion[] {
  return samples.flatMap(({ system, documents, turns }) => {
    const texts = documents.map((text) => ({ text }));
    return turns.map((turn) => ({ set: name, system, documents: texts, ...turn }));
  });
}

export function evalRequest({ system, documents, question }: EvalQuestion, model: string): ChatRequest {
  return {
    model,
    messages: [
      { role: "system", content: system },
      { role: "user", content: question },
    ],
    documents,
    temperature: 0,
    max_tokens: 200,
  };
}
