/** Which stored runs a query's prompts are made of: what a planner of many queries needs to know. */

import { Pace } from "../base/pace.ts";
import type { QueryContext } from "../lower/query-context.ts";
import type { Query } from "../query/ir.ts";
import type { FragmentUse } from "../query/planner.ts";
import { outermostOf } from "./check-query.ts";
import { allRuns, generateOf } from "./prompt-parts.ts";
import type { QueryLowering } from "./run-tree.ts";

/**
 * Each once, with the tokens of the blocks that it fills; what depends on outputs is left out, since no other query has it.
 * @throws ApiError as lowering does
 */
export async function usesOf(
  rewritten: Query,
  lowerer: QueryLowering,
  context: QueryContext,
  blockTokens: number,
): Promise<readonly FragmentUse[]> {
  const pace = new Pace();
  const uses = new Map<string, FragmentUse>();
  for (const { node, path } of allRuns(outermostOf(rewritten))) {
    await pace.breathe();
    const generate = generateOf(node);
    const known = lowerer.preparable(await lowerer.lowerInTurns(generate, context, path));
    for (const { blockKeys } of known?.runs ?? []) {
      const key = blockKeys.at(-1);
      if (key !== undefined) uses.set(key, { key, tokens: blockKeys.length * blockTokens });
    }
  }
  return [...uses.values()];
}
