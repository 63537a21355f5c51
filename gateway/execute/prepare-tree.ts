/** Computes and keeps the KV of a query's prompts, except for the outputs of its generates. */
import type { SpanReport } from "../../worker/contract/messages.ts";
import type { FinishedEvent } from "../dispatch/request/request.ts";
import type { Query } from "../query/ir.ts";
import { outermostOf } from "./check-query.ts";
import { allRuns, generateOf } from "./prompt-parts.ts";
import type { TreeRun } from "./run-tree.ts";

export interface PreparedSpan extends SpanReport {
  readonly worker: string;
}

export interface PreparedSpans {
  /** The prepared spans, each once. */
  readonly spans: readonly PreparedSpan[];
  /** Number of tokens in the known parts of all prompts, text outside spans included, and how many were found. */
  readonly tokens: number;
  readonly cachedTokens: number;
  readonly cacheWriteTokens: number;
  /** One report for each plan that was run. */
  readonly reports: readonly FinishedEvent[];
}

/** @throws ApiError naming a node by its path */
export async function prepareTree(tree: TreeRun, root: Query): Promise<PreparedSpans> {
  const wanted = allRuns(outermostOf(root)).flatMap(({ node, path, spans }) => {
    const generate = generateOf(node);
    return [tree.prepare(generate, path), ...(spans.length === 0 ? [] : [tree.prepareSpans(generate, spans, path)])];
  });
  const reports = (await Promise.all(wanted)).filter((report) => report !== undefined);
  const sum = (read: (report: FinishedEvent) => number): number =>
    reports.reduce((all, report) => all + read(report), 0);
  const spans = new Map<string, PreparedSpan>();
  for (const { spans: found, workerId: worker } of reports) {
    for (const span of found) {
      // A span of several prompts is computed for the first and found for the others, so the first report counts.
      if (spans.get(span.id)?.source !== "computed") spans.set(span.id, { ...span, worker });
    }
  }
  return {
    spans: [...spans.values()],
    tokens: sum(({ usage }) => usage.promptTokens),
    cachedTokens: sum(({ usage }) => usage.cachedTokens),
    cacheWriteTokens: sum(({ usage }) => usage.cacheWriteTokens),
    reports,
  };
}
