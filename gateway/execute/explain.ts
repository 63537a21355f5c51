/** Shows what would happen to a query: the tree before and after the rules, the plans, and the KV that is held now. */

import type { PlanRun } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { yieldToOthers } from "../base/pace.ts";
import { limits } from "../config.ts";
import type { QueryContext } from "../lower/query-context.ts";
import { drawSvg, drawText } from "../query/draw.ts";
import { childrenOf, type Query } from "../query/ir.ts";
import type { Labels } from "../query/outline.ts";
import { printQuery } from "../query/print.ts";
import type { Rewritten } from "../query/rules/rewrite.ts";
import { outermostOf } from "./check-query.ts";
import { allRuns, generateOf, type Inner, sampleCount } from "./prompt-parts.ts";
import type { QueryLowering } from "./run-tree.ts";

/** Says which worker holds how much of a run now. This is a hint. */
export type Residents = (
  run: PlanRun,
  blockTokens: number,
) => { readonly worker: string; readonly cachedTokens: number };

export interface ExplainDeps {
  readonly card: ModelCard;
  readonly lowerer: QueryLowering;
  readonly residents: Residents;
  /** Context for lowering in which stand-ins take the place of all outputs. */
  readonly context: QueryContext;
  readonly signal: AbortSignal;
}

export interface ExplainedRun {
  readonly kind: PlanRun["kind"];
  readonly spanId: string | undefined;
  readonly position: number;
  readonly tokens: number;
  /** First 8 hex digits of each block's key. */
  readonly blockKeys: readonly string[];
  /** false: the run's tokens or keys depend on an output that does not exist yet; its longest stand-in is shown. */
  readonly known: boolean;
  readonly cachedTokens: number;
  /** The worker that holds tokens of the run. "": no worker holds any. */
  readonly worker: string;
}

export interface ExplainedPlan {
  /** Path of the generate in the query as the caller wrote it, and in the rewritten query. */
  readonly path: string;
  readonly place: string;
  readonly samples: number;
  readonly promptTokens: number;
  readonly runs: readonly ExplainedRun[];
  /** Number of runs that are left out. */
  readonly moreRuns: number;
}

export interface Explanation {
  readonly query: unknown;
  readonly steps: readonly {
    readonly rule: string;
    readonly path: string;
    readonly before: unknown;
    readonly after: unknown;
  }[];
  readonly moreSteps: number;
  readonly rewritten: unknown;
  readonly plan: readonly ExplainedPlan[];
  readonly drawing: Readonly<Record<"before" | "after", { readonly text: string; readonly svg: string }>>;
}

/** @throws ApiError as lowering does; the signal's reason */
export async function explain(
  query: Query,
  { query: rewritten, steps }: Rewritten,
  deps: ExplainDeps,
): Promise<Explanation> {
  const plans: ExplainedPlan[] = [];
  let runsLeft: number = limits.explainRuns;
  for (const run of allRuns(outermostOf(rewritten))) {
    const plan = await explainRun(run, deps, runsLeft);
    runsLeft -= plan.runs.length;
    plans.push(plan);
    await yieldUnlessAborted(deps.signal);
  }
  const labels = labelsOf(rewritten, plans);
  const shownSteps: Explanation["steps"][number][] = [];
  for (const { rule, path, before, after } of steps.slice(0, limits.explainSteps)) {
    shownSteps.push({ rule, path, before: shortPrint(before), after: shortPrint(after) });
    await yieldUnlessAborted(deps.signal);
  }
  const drawn = async (tree: Query, labels?: Labels) => {
    const text = drawText(tree, labels);
    await yieldUnlessAborted(deps.signal);
    return { text, svg: drawSvg(tree, labels) };
  };
  const printed = async (tree: Query): Promise<unknown> => {
    await yieldUnlessAborted(deps.signal);
    return printQuery(tree);
  };
  return {
    query: await printed(query),
    steps: shownSteps,
    moreSteps: Math.max(0, steps.length - limits.explainSteps),
    rewritten: await printed(rewritten),
    plan: plans,
    drawing: { before: await drawn(query), after: await drawn(rewritten, labels) },
  };
}

/** Lets other work use the event loop. @throws the signal's reason */
async function yieldUnlessAborted(signal: AbortSignal): Promise<void> {
  await yieldToOthers();
  signal.throwIfAborted();
}

async function explainRun(run: Inner, deps: ExplainDeps, runsLeft: number): Promise<ExplainedPlan> {
  const { card, lowerer, residents, context } = deps;
  const { node, place, path } = run;
  const { plan, promptTokens, indeterminateRuns } = await lowerer.lowerInSlices(generateOf(node), context, place);
  await yieldUnlessAborted(deps.signal);
  const shown = plan.runs.slice(0, runsLeft).map((one, index): ExplainedRun => {
    const { kind, spanId, position, tokenIds, blockKeys } = one;
    const held = residents(one, card.blockTokens);
    return {
      kind,
      spanId,
      position,
      tokens: tokenIds.length,
      blockKeys: blockKeys.map((key) => key.slice(0, 8)),
      known: !indeterminateRuns.has(index),
      ...held,
    };
  });
  const moreRuns = plan.runs.length - shown.length;
  return { path, place, samples: sampleCount(node), promptTokens, runs: shown, moreRuns };
}

/**
 * Labels for the drawing: a generate's prompt length, a span's length and key, and the tokens of each that are held.
 */
function labelsOf(root: Query, plans: readonly ExplainedPlan[]): (node: Query) => string | undefined {
  const labels = new Map<string, string>();
  for (const { place, promptTokens, runs } of plans) {
    const cached = runs.reduce((sum, run) => sum + run.cachedTokens, 0);
    labels.set(place, `${promptTokens} tokens, ${cached} held`);
    for (const { spanId, tokens, blockKeys, cachedTokens, known } of runs) {
      if (spanId === undefined || labels.has(spanId)) continue;
      const length = known ? String(tokens) : `at most ${tokens}`;
      labels.set(spanId, `${length} tokens, key ${blockKeys.at(-1) ?? "none"}, ${cachedTokens} held`);
    }
  }
  const byNode = new Map<Query, string>();
  const seen = new Set<Query>();
  const visit = (query: Query, path: string): void => {
    if (seen.has(query)) return;
    seen.add(query);
    const label = labels.get(query.kind === "fragment" && "id" in query ? query.id : path);
    if (label !== undefined) byNode.set(query, label);
    for (const [step, child] of childrenOf(query)) visit(child, path + step);
  };
  visit(root, "$");
  return (node) => byNode.get(node);
}

/** The node as JSON. A node with much text is drawn instead, since the drawing cuts texts and large trees. */
function shortPrint(node: Query): unknown {
  return charsOf(node, limits.explainNodeChars) > limits.explainNodeChars ? drawText(node) : printQuery(node);
}

/** Approximate number of characters that a node prints. Counting stops at `enough`. */
function charsOf(node: Query, enough: number): number {
  let chars = 16;
  if (node.kind === "message") chars += node.text.length;
  else if (node.kind === "fragment") chars += "text" in node ? node.text.length : node.id.length;
  else if (node.kind === "map") chars += node.inputs.reduce((sum, input) => sum + input.length + 4, 0);
  else if (node.kind === "generate") chars += 128;
  for (const [, child] of childrenOf(node)) {
    if (chars > enough) break;
    chars += charsOf(child, enough - chars);
  }
  return chars;
}
