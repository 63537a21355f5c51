/** Finds the generates that must run before a prompt can be lowered. Nothing is run here. */
import { childrenOf, type Generate, type Query, type Repeat } from "../query/ir.ts";
import { originOf } from "./origins.ts";

export interface Inner {
  readonly node: Generate | Repeat;
  /** Path of the generate object as the caller wrote it, where that is known. Its fields are at `.g.…` below it. */
  readonly path: string;
  /** Path of the generate object in the rewritten query. */
  readonly place: string;
}

export interface PromptParts {
  /** Generates whose outputs stand in the prompt, each object once. */
  readonly inner: readonly Inner[];
  /** Generates that run only for their effect. */
  readonly effects: readonly Inner[];
  /** Inputs to compute and keep as spans: those of one-token generates in a commutative join under a monad. */
  readonly spans: readonly { readonly input: Query; readonly place: string }[];
}

export const generateOf = (node: Generate | Repeat): Generate => (node.kind === "repeat" ? node.generate : node);

export const sampleCount = (node: Generate | Repeat): number => (node.kind === "repeat" ? node.n : 1);

export const inputPlace = ({ place }: Inner): string => `${place}.g.input`;

/** @param at path of the node in the rewritten query */
export function innerAt(node: Generate | Repeat, at: string): Inner {
  const place = node.kind === "repeat" ? `${at}.repeat` : at;
  return { node, place, path: originOf(generateOf(node)) ?? place };
}

/** The use of a node: the prompt reads it, it runs for its effect, or it is prepared as a span. */
type Role = "prompt" | "effect" | "span";

/** Searches a prompt down to its first generates. What those need themselves is found when they run. */
export function promptParts(prompt: Query, place: string): PromptParts {
  const parts = { inner: [] as Inner[], effects: [] as Inner[], spans: [] as PromptParts["spans"][number][] };
  const seen = { prompt: new Set<Query>(), effect: new Set<Query>(), span: new Set<Query>() };
  const visit = (query: Query, at: string, role: Role): void => {
    // A shared node is one run, however often it is met.
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
  // Spans that the prompt itself holds are computed with it, so preparing them first would only cost one more request.
  return { ...parts, spans: parts.spans.filter(({ input }) => !seen.prompt.has(input)) };
}

function roleOfChild(parent: Query, role: Role): Role {
  if (role === "prompt") return parent.kind === "monad" ? "effect" : "prompt";
  return parent.kind === "plus" ? "span" : role;
}

/** The generates whose outputs stand in the inputs of these spans. */
export function innerOfSpans(spans: PromptParts["spans"]): readonly Inner[] {
  return spans.flatMap(({ input, place }) => promptParts(input, place).inner);
}

/** Every generate that runs in a rewritten query, each object once. Inner ones come before those that read them. */
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
