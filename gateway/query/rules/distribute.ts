/**
 * Plus distribution, the paper's dual output: in a commutative join, the outer generate sees the input of an inner one
 * and then its output. After this rule, the inner output stands behind its own input, which is where its keys and
 * values were computed, so both are reused unchanged.
 */
import type { Generate, Plus, Query, Repeat } from "../ir.ts";
import { isOrdered, isRun, nothing, optionsOf } from "../nodes.ts";
import { mapChildren } from "../transform.ts";
import { type Rule, type RuleContext, ruleOn } from "./rule.ts";

/**
 * This is a rule of the outer generate, since a plus alone does not know who reads it. Every place of the inner run
 * gets the same renamed object, so that it stays one run.
 */
const distributePlus = ruleOn(
  ["generate"],
  "distribute-plus",
  "g(.. plus[h(x)] ..) -> g(.. plus[seq[x, h'(x)]] ..), h' exposes its output alone",
  (generate, context) => {
    if (!context.spans) return undefined;
    const input = inPrompt(generate.input, context);
    return input === generate.input ? undefined : { ...generate, input };
  },
);

/** Applies the rule to all of one prompt: through its joins, but not into generates in it, nor into monads. */
function inPrompt(query: Query, context: RuleContext): Query {
  // In an ordered join, a generate shows its input only where the query asks for it.
  if (isRun(query)) return optionsOf(query).expose === "both" ? inputThenOutput(query, context) : query;
  if (query.kind === "plus") return inPlus(query, context);
  return isOrdered(query) ? mapChildren(query, (child) => inPrompt(child, context)) : query;
}

function inPlus(plus: Plus, context: RuleContext): Query {
  // The preamble is a chain of its own, not a member of the join.
  return mapChildren(plus, (child, index) => {
    const isMember = plus.preamble === undefined || index > 0;
    const isShown = isMember && isRun(child) && optionsOf(child).expose !== "output";
    return isShown ? inputThenOutput(child, context) : inPrompt(child, context);
  });
}

/** A run's input, then its output. The outer generate now reads that input too, so the rule applies to it again. */
function inputThenOutput(run: Generate | Repeat, context: RuleContext): Query {
  const { input } = run.kind === "generate" ? run : run.generate;
  const read = withoutEffects(input);
  return { kind: "seq", children: [...(isOrdered(read) ? read.children : [read]), context.rename(run)] };
}

/** The query without its monads, which are run for the inner generate already. */
function withoutEffects(query: Query): Query {
  if (query.kind === "monad") return nothing;
  if (!isOrdered(query) && query.kind !== "plus") return query;
  const stripped = mapChildren(query, withoutEffects);
  if (stripped === query || (!isOrdered(stripped) && stripped.kind !== "plus")) return query;
  return { ...stripped, children: stripped.children.filter((child) => child !== nothing) };
}

export const distributeRules: readonly Rule[] = [distributePlus];
