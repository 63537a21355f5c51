/** Runs a query to its whole answer: for /v1/query/execute's callers that are no HTTP request of their own. */
import type { TenantId } from "../../../db/ids.ts";
import type { BulkRunner } from "../../execute/bulk/bulk.ts";
import type { Query } from "../../query/ir.ts";
import { collect, emptyChoices } from "../generation/choice.ts";
import { answerKindOf, countTree, headOf, queryAnswer } from "./answer.ts";
import type { QueryRouteDeps } from "./query.ts";

export function queryRunner({ queries, metrics, nowMs }: QueryRouteDeps, tenantId: TenantId): BulkRunner {
  const jobOf = (query: Query, requestId: string, signal: AbortSignal) => {
    return { requestId, tenantId, query, reuse: true, restartable: true, signal };
  };
  return {
    fragments: (query, signal) => queries.uses(jobOf(query, "planned", signal)),
    run: async (query, requestId, signal) => {
      const run = queries.execute(jobOf(query, requestId, signal));
      const choices = emptyChoices(run.choiceCount);
      try {
        for await (const [index, event] of run.events) collect(choices[index], event);
        // What was aborted ends without a word; it is no answer.
        signal.throwIfAborted();
        const kind = answerKindOf(query);
        const head = headOf(kind, requestId, run.model, nowMs());
        return { response: queryAnswer(kind, head, requestId, run.report, choices), usage: run.report.usage() };
      } finally {
        countTree(metrics, tenantId, run.report);
      }
    },
  };
}
