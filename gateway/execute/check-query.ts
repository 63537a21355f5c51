/** Finds what is wrong with a query of valid shape, before anything is read or run. */
import type { z } from "zod";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { ApiError } from "../base/errors.ts";
import { checkSparse } from "../generate/sparse.ts";
import { childrenOf, type GenerateOptions, type Query } from "../query/ir.ts";
import { requireModel } from "./params.ts";
import { type Inner, innerAt } from "./prompt-parts.ts";

/** Number of choices in a query's answer. @throws ApiError invalid_value when such a query has no answer */
export function choiceCount(root: Query): number {
  switch (root.kind) {
    case "generate":
    case "chat":
      return 1;
    case "repeat":
      return root.n;
    case "map":
      return root.inputs.length;
    case "plus":
      if (root.preamble === undefined && root.children.every(({ kind }) => kind === "generate")) {
        return root.children.length;
      }
      throw notAnAnswer();
    default:
      throw notAnAnswer();
  }
}

function notAnAnswer(): ApiError {
  return new ApiError("invalid_value", {
    message: '$: the query must be a generate: "g", "repeat", "map", "chat", or a "plus" of "g".',
    param: "$",
  });
}

/**
 * @param filters schema of a retrieve's filters
 * @throws ApiError model_not_found, invalid_value
 */
export function checkQuery(root: Query, card: ModelCard, filters: z.ZodType): void {
  const seen = new Set<Query>();
  const visit = (query: Query, path: string): void => {
    if (seen.has(query)) return;
    seen.add(query);
    if (query.kind === "generate") checkOptions(query.options, card, `${path}.g`);
    if (query.kind === "map") checkOptions(query.options, card, `${path}.map.metadata`);
    if (query.kind === "retrieve" && query.filters !== undefined) {
      checkFilters(query.filters, filters, `${path}.retrieve.filters`);
    }
    for (const [step, child] of childrenOf(query)) visit(child, path + step);
  };
  visit(root, "$");
}

function checkOptions({ model, reuse, sparse }: GenerateOptions, card: ModelCard, path: string): void {
  requireModel(card, model, `${path}.model`);
  checkSparse(card, sparse, `${path}.sparse`);
  if (reuse === "blend" && sparse !== undefined && sparse !== false) {
    const param = `${path}.sparse`;
    const why = 'blended KV is an approximation already; leave one of them out, or write "reuse": "exact"';
    throw new ApiError("invalid_value", { message: `${param}: does not go with "reuse": "blend": ${why}.`, param });
  }
  if (reuse !== "blend" || card.blends !== false) return;
  const param = `${path}.reuse`;
  const why = "this server holds KV in mx8 (SPANGATE_KV_CODEC), where nothing is blended";
  throw new ApiError("invalid_value", { message: `${param}: ${why}; leave it out, or write "exact".`, param });
}

function checkFilters(value: unknown, schema: z.ZodType, path: string): void {
  const [issue] = schema.safeParse(value).error?.issues ?? [];
  if (issue === undefined) return;
  const steps = issue.path.map((step) => (typeof step === "number" ? `[${step}]` : `.${String(step)}`));
  const param = path + steps.join("");
  throw new ApiError("invalid_value", { message: `${param}: ${issue.message}.`, param });
}

/** The generates whose outputs are the answer of a rewritten query, in the order of its choices. */
export function outermostOf(root: Query): readonly Inner[] {
  if (root.kind === "generate" || root.kind === "repeat") return [innerAt(root, "$")];
  if (root.kind === "plus") return root.children.map((child, index) => outermostAt(child, `$.plus[${index}]`));
  if (root.kind !== "map") throw new ApiError("internal", { cause: new Error(`rewritten to a ${root.kind}`) });
  return root.inputs.map((text, index) => {
    const place = `$.map.inputs[${index}]`;
    const input = { kind: "message", role: "user", text } as const;
    return { node: { kind: "generate", options: root.options, input }, place, path: place };
  });
}

function outermostAt(child: Query, place: string): Inner {
  if (child.kind === "generate") return innerAt(child, place);
  throw new ApiError("internal", { cause: new Error(`rewritten to a plus of a ${child.kind}`) });
}
