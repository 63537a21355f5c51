/** Wires span queries: how they read fragments, how they are lowered and run, and what they see of the caches. */
import type { TenantId } from "../../db/ids.ts";
import type { PlanRun } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { ApiError } from "../base/errors.ts";
import { limits } from "../config.ts";
import type { Corpus } from "../corpus/corpus.ts";
import type { AttributeFilter } from "../corpus/search/attribute-filter.ts";
import { attributeFilterSchema } from "../corpus/search/filters.ts";
import type { Dispatcher } from "../dispatch/dispatcher.ts";
import { paced } from "../execute/bulk/bulk.ts";
import { BulkResults } from "../execute/bulk/bulk-results.ts";
import { QueryService, type QueryServiceDeps } from "../execute/query-service.ts";
import type { QueryLowering } from "../execute/run-tree.ts";
import { ConcurrencyLimiter } from "../http/middleware/concurrency.ts";
import type { BulkRouteDeps } from "../http/query/bulk.ts";
import { type QueryRouteDeps, queryRunner } from "../http/query/query.ts";
import type { RateLimiter } from "../tenant/rate-limiter.ts";
import type { TenantService } from "../tenant/tenants.ts";
import type { TokenBytes } from "../text/detokenizer.ts";
import type { Workers } from "./workers.ts";

/** The workers for requests of callers: work that is submitted here counts against the caller's limits. */
export interface LimitedWorkers extends Pick<Workers, "registry" | "residency"> {
  readonly dispatcher: Pick<Dispatcher, "submit">;
}

export interface QueryParts {
  readonly workers: LimitedWorkers;
  readonly text: {
    readonly tokenBytes: TokenBytes;
    readonly tokenizer: { countTokens(text: string): number };
    readonly queryLowererFor: (card: ModelCard) => QueryLowering;
  };
  readonly tenants: Pick<TenantService, "cacheSalt">;
  readonly corpus: Pick<Corpus, "retrieve" | "readFragments" | "fragmentsUsed">;
  readonly reduceArity: number | undefined;
  readonly onLateEnd: QueryServiceDeps["onLateEnd"];
  readonly traceOf: NonNullable<QueryServiceDeps["traceOf"]>;
}

export function openQueries(parts: QueryParts): QueryService {
  const { workers, text, tenants, corpus, reduceArity, onLateEnd, traceOf } = parts;
  const { dispatcher, registry, residency } = workers;
  const residents = (run: PlanRun, blockTokens: number) => {
    let best = { worker: "", cachedTokens: 0 };
    for (const { id } of registry.ready()) {
      const cachedTokens = residency.cachedTokens(id, [run], blockTokens);
      if (cachedTokens > best.cachedTokens) best = { worker: id, cachedTokens };
    }
    return best;
  };
  return new QueryService({
    dispatcher,
    tokenBytes: text.tokenBytes,
    card: () => registry.card(),
    lowererFor: text.queryLowererFor,
    cacheSalt: (tenantId) => tenants.cacheSalt(tenantId, undefined),
    retrieve: (tenantId, { filters: given, ...search }, signal) => {
      const filters = given as AttributeFilter | undefined;
      return corpus.retrieve({ tenantId, ...search, filters, signal, isAhead: true });
    },
    fragments: (tenantId, ids) => corpus.readFragments(tenantId, ids),
    fragmentsUsed: (fragments, use) => corpus.fragmentsUsed(fragments, use),
    countTokens: (part) => text.tokenizer.countTokens(part),
    filters: attributeFilterSchema,
    residents,
    reduceArity,
    onLateEnd,
    traceOf,
  });
}

/** Opens the execution of many queries at once. Each query waits until its tenant has tokens left. */
export function openBulk(
  query: QueryRouteDeps,
  rateLimiter: RateLimiter,
  card: () => ModelCard | undefined,
): BulkRouteDeps {
  return {
    results: new BulkResults({
      tenants: limits.bulkResultTenants,
      bulksPerTenant: limits.bulkRecordsPerTenant,
      bytesPerTenant: limits.bulkResultBytesPerTenant,
      keepMs: limits.bulkKeepMs,
      nowMs: query.nowMs,
    }),
    runnerFor: (tenantId: TenantId) => paced(queryRunner(query, tenantId), rateLimiter),
    capacityTokens: () => poolTokens(card()),
    limiter: new ConcurrencyLimiter(limits.bulksPerTenant),
    log: query.log,
  };
}

/** The tokens that the KV pool can hold. @throws ApiError not_ready while no model is known */
function poolTokens(card: ModelCard | undefined): number {
  if (card === undefined) throw new ApiError("not_ready", { retryAfterS: 2 });
  return card.blockCount * card.blockTokens;
}
