/** The corpora that the demo model ships with: a folder for each tenant, Markdown documents and questions about them. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { repositoryRoot } from "./support/setup.ts";

export interface DemoCorpus {
  readonly tenant: string;
  readonly documents: readonly { readonly name: string; readonly text: string }[];
  readonly questions: readonly { readonly question: string; readonly answer: string }[];
}

export const demoModelFolder: string = join(repositoryRoot, "worker", "model", "demo");

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
