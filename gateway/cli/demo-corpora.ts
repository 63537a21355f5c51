/** The corpora that the demo model ships with: a folder for each tenant, Markdown documents and questions about them. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { demoModelFolder } from "../../places/places.ts";

export { demoModelFolder };

export interface DemoCorpus {
  readonly tenant: string;
  readonly documents: readonly { readonly name: string; readonly text: string }[];
  /** `answer`: words that a right answer holds; the model answers with the sentence of the page that holds them. */
  readonly questions: readonly { readonly question: string; readonly answer: string }[];
}

/** As many tokens as the sentence that answers a shipped question has at most. */
export const demoAnswerTokens = 64;

export function readDemoCorpora(folder: string = join(demoModelFolder, "corpora")): DemoCorpus[] {
  const tenants = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  return tenants
    .map(({ name }) => name)
    .sort()
    .map((tenant) => {
      const names = readdirSync(join(folder, tenant))
        .filter((name) => name.endsWith(".md"))
        .sort();
      return {
        tenant,
        documents: names.map((name) => ({ name, text: readFileSync(join(folder, tenant, name), "utf8") })),
        questions: JSON.parse(readFileSync(join(folder, tenant, "questions.json"), "utf8")),
      };
    });
}
