/**
 * What a query's answer may rest on: the fragments and documents that the model read for it, those in the prompts of inner
 * generates too, since what they wrote stands in the outer prompt.
 */
import { Pace } from "../base/pace.ts";
import type { NamedFragment } from "../corpus/search/retrieve.ts";
import type { AnswerSources, CitedFragment, PromptDocument } from "../generate/plan-documents.ts";
import { childrenOf, type Query } from "../query/ir.ts";
import { generateOf, type Inner, sampleCount } from "./prompt-parts.ts";

/** The stored fragment, or the document of the query, that a node of the resolved query shows; undefined: neither. */
export type SourceOf = (query: Query) => NamedFragment | PromptDocument | undefined;

/** The sources of each choice. A query may have very many choices over very many fragments, so other work runs between them. */
export async function sourcesOfChoices(
  outers: readonly Inner[],
  sourceOf: SourceOf,
): Promise<readonly AnswerSources[]> {
  const pace = new Pace();
  const sources: AnswerSources[] = [];
  for (const { node } of outers) {
    const own = sourcesOf(generateOf(node).input, sourceOf);
    for (let sample = 0; sample < sampleCount(node); sample++) sources.push(own);
    await pace.breathe();
  }
  return sources;
}

/** @param prompt input of a generate, rewritten */
function sourcesOf(prompt: Query, sourceOf: SourceOf): AnswerSources {
  const documents = new Set<PromptDocument>();
  const retrieved = new Map<string, CitedFragment>();
  const seen = new Set<Query>();
  let question = "";
  const visit = (query: Query, isInner: boolean): void => {
    // What runs for its effect alone puts nothing into the prompt.
    if (seen.has(query) || query.kind === "monad") return;
    seen.add(query);
    const source = sourceOf(query);
    if (source === undefined) {
      if (query.kind === "message" && query.role === "user" && !isInner) question = query.text;
    } else if ("salt" in source) retrieved.set(source.id, source);
    else documents.add(source);
    for (const [, child] of childrenOf(query)) visit(child, isInner || query.kind === "generate");
  };
  visit(prompt, false);
  return { question, documents: [...documents], retrieved: [...retrieved.values()] };
}
