/** What must have run before a prompt can be lowered: found in its tree, not run here. */
import { childrenOf, type Generate, type Query, type Repeat } from "../query/ir.ts";
import { originOf } from "./origins.ts";

export interface Inner {
  readonly node: Generate | Repeat;
  /** Of the generate object, as the caller wrote it where that is known: its fields are at `.g.…` below. */
  readonly path: string;
  /** Of the generate object in the rewritten query. */
  readonly place: string;
}

export interface PromptParts {
  /** Generates whose outputs stand in the prompt, each object once. */
  readonly inner: readonly Inner[];
  /** Generates that are run for their effect. */
  readonly effects: readonly Inner[];
  /** Inputs that are to be computed and kept as spans: those of one-token generates in a commutative join. */
  readonly spans: readonly { readonly input: Query; readonly place: string }[];
}

export const generateOf = (node: Generate | Repeat): Generate => (node.kind === "repeat" ? node.generate : node);

export const sampleCount = (node: Generate | Repeat): number => (node.kind === "repeat" ? node.n : 1);

export const inputPlace = ({ place }: Inner): string => `${place}.g.input`;

/** @param at path of the node, in the query as it is now */
export function innerAt(node: Generate | Repeat, at: string): Inner {
  const place = node.kind === "repeat" ? `${at}.repeat` : at;
  return { node, place, path: originOf(generateOf(node)) ?? place };
}

/** What a node is there for: the prompt reads it, it runs for its effect, it is prepared as a span. */
type Role = "prompt" | "effect" | "span";

/** Looks into a prompt up to its first generates; what those need is found when they run. */
export function promptParts(prompt: Query, place: string): PromptParts {
  const parts = { inner: [] as Inner[], effects: [] as Inner[], spans: [] as PromptParts["spans"][number][] };
  const seen = { prompt: new Set<Query>(), effect: new Set<Query>(), span: new Set<Query>() };
  const visit = (query: Query, at: string, role: Role): void => {
    // A node that is shared is one run, wherever it is met again.
    if (seen[role].has(query)) return;
    seen[role].add(query);
    if (query.kind === "generate" || query.kind === "repeat") {
      const preparing = role === "span" && query.kind === "generate" && query.options.maxTokens === 1;
      const inner = innerAt(query, at);
      if (preparing) parts.spans.push({ input: query.input, place: inputPlace(inner) });
      else (role === "prompt" ? parts.inner : parts.effects).push(inner);
      return;
    }
    for (const [step, child] of childrenOf(query)) visit(child, at + step, roleOfChild(query, role));
  };
  visit(prompt, place, "prompt");
  // What the prompt holds itself is computed with it, so preparing it first would only take a turn more.
  return { ...parts, spans: parts.spans.filter(({ input }) => !seen.prompt.has(input)) };
}

function roleOfChild(parent: Query, role: Role): Role {
  if (role === "prompt") return parent.kind === "monad" ? "effect" : "prompt";
  return parent.kind === "plus" ? "span" : role;
}

/** Generates whose outputs stand in inputs that are prepared as spans. */
export function innerOfSpans(spans: PromptParts["spans"]): readonly Inner[] {
  return spans.flatMap(({ input, place }) => promptParts(input, place).inner);
}

/** Every generate that runs in a rewritten query, each object once, inner ones before those that read them. */
export function allRuns(outermost: readonly Inner[]): readonly (Inner & Pick<PromptParts, "spans">)[] {
  const found: (Inner & Pick<PromptParts, "spans">)[] = [];
  const seen = new Set<Query>();
  const visit = (run: Inner): void => {
    if (seen.has(run.node)) return;
    seen.add(run.node);
    const { inner, effects, spans } = promptParts(generateOf(run.node).input, inputPlace(run));
    for (const one of [...inner, ...effects, ...innerOfSpans(spans)]) visit(one);
    found.push({ ...run, spans });
  };
  for (const run of outermost) visit(run);
  return found;
}
