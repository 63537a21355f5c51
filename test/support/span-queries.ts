/** What the server does to span queries in steps, between which it turns to other work, done in one go. */
import type { Query } from "../../gateway/query/ir.ts";
import {
  FragmentTable,
  type FragmentUse,
  missTokens,
  type PlannedOrder,
  planningSteps,
} from "../../gateway/query/planner.ts";
import { type RewriteOptions, type Rewritten, rewriteInSteps } from "../../gateway/query/rules/rewrite.ts";
import { standardRules } from "../../gateway/query/rules/table.ts";

function finished<Result>(steps: Generator<void, Result>): Result {
  for (;;) {
    const { done, value } = steps.next();
    if (done === true) return value;
  }
}

export const rewrite = (query: Query, options: RewriteOptions = {}, rules = standardRules): Rewritten =>
  finished(rewriteInSteps(query, options, rules));

export const planOrder = (queries: readonly (readonly FragmentUse[])[], capacityTokens: number): PlannedOrder =>
  finished(planningSteps(FragmentTable.of(queries), capacityTokens));

/** Tokens that an order computes and finds in a simulated pool of `capacityTokens`. */
export function simulateOrder(
  queries: readonly (readonly FragmentUse[])[],
  order: readonly number[],
  capacityTokens: number,
): { readonly missTokens: number; readonly hitTokens: number } {
  const table = FragmentTable.of(queries);
  const missed = finished(missTokens(table, order, capacityTokens));
  const used = table.fragmentsOf.reduce((sum, fragments) => sum + table.tokensOf(fragments), 0);
  return { missTokens: missed, hitTokens: used - missed };
}
