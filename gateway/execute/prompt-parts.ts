/** What must have run before a prompt can be lowered: found in its tree, not run here. */
import { childrenOf, type Generate, type Query, type Repeat } from "../query/ir.ts";
import { originOf } from "./origins.ts";

export interface Inner {
  readonly node: Generate | Repeat;
  /** Of the generate object, as the caller wrote it where that is known: its fields are at `.g.…` below. */
  readonly path: string;
}

export interface PromptParts {
  /** Generates whose outputs stand in the prompt, each object once. */
  readonly inner: readonly Inner[];
  /** Generates that are run for their effect. */
  readonly effects: readonly Inner[];
  /** Inputs that are to be computed and kept as spans: those of one-token generates in a commutative join. */
  readonly spans: readonly { readonly input: Query; readonly path: string }[];
}

export const generateOf = (node: Generate | Repeat): Generate => (node.kind === "repeat" ? node.generate : node);

export const sampleCount = (node: Generate | Repeat): number => (node.kind === "repeat" ? node.n : 1);

export const inputPath = ({ path }: Inner): string => `${path}.g.input`;

/** @param path of the node, in the query as it is now */
export function innerAt(node: Generate | Repeat, path: string): Inner {
  return { node, path: originOf(generateOf(node)) ?? (node.kind === "repeat" ? `${path}.repeat` : path) };
}

/** Where a node stands: what the prompt reads, what runs for its effect, what is prepared as a span. */
type Place = "prompt" | "effect" | "span";

/** Looks into a prompt up to its first generates; what those need is found when they run. */
export function promptParts(prompt: Query, path: string): PromptParts {
  const parts = { inner: [] as Inner[], effects: [] as Inner[], spans: [] as PromptParts["spans"][number][] };
  const seen = { prompt: new Set<Query>(), effect: new Set<Query>(), span: new Set<Query>() };
  const visit = (query: Query, at: string, place: Place): void => {
    // A node that is shared is one run, wherever it is met again.
    if (seen[place].has(query)) return;
    seen[place].add(query);
    if (query.kind === "generate" || query.kind === "repeat") {
      const preparing = place === "span" && query.kind === "generate" && query.options.maxTokens === 1;
      const inner = innerAt(query, at);
      if (preparing) parts.spans.push({ input: query.input, path: inputPath(inner) });
      else (place === "prompt" ? parts.inner : parts.effects).push(inner);
      return;
    }
    for (const [step, child] of childrenOf(query)) visit(child, at + step, placeOfChild(query, place));
  };
  visit(prompt, path, "prompt");
  // What the prompt holds itself is computed with it, so preparing it first would only take a turn more.
  return { ...parts, spans: parts.spans.filter(({ input }) => !seen.prompt.has(input)) };
}

function placeOfChild(parent: Query, place: Place): Place {
  if (place === "prompt") return parent.kind === "monad" ? "effect" : "prompt";
  return parent.kind === "plus" ? "span" : place;
}
