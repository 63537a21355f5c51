/**
 * Attention locality: a judge over many commutative children becomes a tree of judges over few each. Attention spreads
 * thinner the more there is to read; a judge over m children reads no more than m at any level.
 */
import type { Generate, Plus, Query } from "../ir.ts";
import { isOrdered, type Rule, ruleOn } from "./rule.ts";

/**
 * Fires again on its own result until the outermost judge reads at most m outputs. The plus was
 * brought into canonical order before (children are rewritten before their parents), so the same set is always
 * grouped in the same way.
 */
const reduceJudge = ruleOn(
  ["generate"],
  "reduce-judge",
  "g(seq[a, plus[k children], b]) -> g(seq[a, plus[ceil(k/m) of g(seq[a, plus[m children], b])], b])",
  (judge, context) => {
    const arity = judge.options.reduce?.arity ?? context.reduceArity;
    const shape = judgeShape(judge.input);
    if (arity === undefined || shape === undefined || shape.judged.length <= arity) return undefined;
    const judges = balancedGroups(shape.judged, arity).map((group) => innerJudge(judge, shape, group));
    return { ...judge, input: withPlus(judge.input, shape.plus, [...shape.effects, ...judges]) };
  },
);

interface JudgeShape {
  readonly plus: Plus;
  readonly judged: readonly Query[];
  /** Monads among the children: run once, for the outermost judge. */
  readonly effects: readonly Query[];
}

/** One plus between messages, and effects. A preamble stands before all children at once: there is no telling whose it is. */
function judgeShape(input: Query): JudgeShape | undefined {
  const parts = isOrdered(input) ? input.children : [input];
  const [plus, ...others] = parts.filter((part) => part.kind !== "message" && part.kind !== "monad");
  if (plus?.kind !== "plus" || plus.preamble !== undefined || others.length > 0) return undefined;
  const { true: effects = [], false: judged = [] } = Object.groupBy(plus.children, ({ kind }) =>
    kind === "monad" ? "true" : "false",
  );
  return { plus, judged, effects };
}

function innerJudge(judge: Generate, { plus }: JudgeShape, group: readonly Query[]): Generate {
  const { reduce: _, ...options } = judge.options;
  const input = isOrdered(judge.input)
    ? { ...judge.input, children: judge.input.children.filter(({ kind }) => kind !== "monad") }
    : judge.input;
  return { kind: "generate", options: { ...options, expose: "output" }, input: withPlus(input, plus, group) };
}

/** The join with other children in its plus. */
function withPlus(input: Query, plus: Plus, children: readonly Query[]): Query {
  const replaced: Plus = { ...plus, children };
  if (!isOrdered(input)) return replaced;
  return { ...input, children: input.children.map((part) => (part === plus ? replaced : part)) };
}

/** As few groups as the arity allows, in order, their sizes at most one apart. */
function balancedGroups(children: readonly Query[], arity: number): readonly (readonly Query[])[] {
  const groupCount = Math.ceil(children.length / arity);
  const start = (group: number) => Math.floor((group * children.length) / groupCount);
  return Array.from({ length: groupCount }, (_, group) => children.slice(start(group), start(group + 1)));
}

export const reduceRules: readonly Rule[] = [reduceJudge];
