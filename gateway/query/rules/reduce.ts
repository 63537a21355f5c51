/**
 * Attention locality: a judge over many commutative children becomes a tree of judges over few each. Attention to each
 * child is weaker the more there is to read. In a tree, a judge over m children reads no more than m at any level.
 */
import { childrenOf, type Generate, type Plus, type Query } from "../ir.ts";

import { queryLimits } from "../limits.ts";
import { isOrdered, judgeCount } from "../nodes.ts";
import { type Rule, ruleOn } from "./rule.ts";

/**
 * Judges above the lowest level read answers in an ordered join, so that the answers are computed in place like any
 * text. An answer's own KV continues its sources, and a reader of several answers with such KV loses half of them
 * (`bench needle` shows what the tree finds). Children are rewritten before their parents, so the plus is in canonical
 * order here, and the same set is always grouped in the same way.
 */
const reduceJudge = ruleOn(
  ["generate"],
  "reduce-judge",
  "g(seq[a, plus[k children], b]) -> g(seq[a, seq[at most m of g(seq[a, plus[m children], b])], b]), in levels",
  (judge, context) => {
    const arity = judge.options.reduce?.arity ?? context.reduceArity;
    const shape = judgeShape(judge.input);
    if (arity === undefined || shape === undefined || shape.judged.length <= arity) return undefined;
    const { plus, judged, effects } = shape;
    // The parser refuses this for a client's own arity. For the server's arity, such a large judge stays whole.
    if (childrenOf(judge.input).length * judgeCount(judged.length, arity) > queryLimits.copiedNodes) return undefined;
    let judges = balancedGroups(judged, arity).map((group) => innerJudge(judge, plus, { ...plus, children: group }));
    while (judges.length > arity) {
      judges = balancedGroups(judges, arity).map((group) => {
        const [only] = group;
        // A single answer needs no judge, so it goes up unchanged.
        return only !== undefined && group.length === 1
          ? only
          : innerJudge(judge, plus, { kind: "seq", children: group });
      });
    }
    return { ...judge, input: withJoin(judge.input, plus, { kind: "seq", children: [...effects, ...judges] }) };
  },
);

interface JudgeShape {
  readonly plus: Plus;
  readonly judged: readonly Query[];
  /** The monads among the children, which run once, for the outermost judge. */
  readonly effects: readonly Query[];
}

/**
 * The input's one plus, with messages around it and effects. A plus with a preamble does not fit: the preamble stands
 * before all children and cannot be divided among the judges.
 */
function judgeShape(input: Query): JudgeShape | undefined {
  const parts = isOrdered(input) ? input.children : [input];
  const [plus, ...others] = parts.filter((part) => part.kind !== "message" && part.kind !== "monad");
  if (plus?.kind !== "plus" || plus.preamble !== undefined || others.length > 0) return undefined;
  const { true: effects = [], false: judged = [] } = Object.groupBy(plus.children, ({ kind }) =>
    kind === "monad" ? "true" : "false",
  );
  return { plus, judged, effects };
}

/** An inner judge keeps its own arity, so that the server's smaller one does not split it again. */
function innerJudge(judge: Generate, plus: Plus, join: Query): Generate {
  const input = isOrdered(judge.input)
    ? { ...judge.input, children: judge.input.children.filter(({ kind }) => kind !== "monad") }
    : judge.input;
  return { kind: "generate", options: { ...judge.options, expose: "output" }, input: withJoin(input, plus, join) };
}

/** The input with its plus replaced by `join`. */
function withJoin(input: Query, plus: Plus, join: Query): Query {
  if (!isOrdered(input)) return join;
  return { ...input, children: input.children.map((part) => (part === plus ? join : part)) };
}

/** Groups children in order into as few groups as the arity allows; the groups' sizes differ by at most one. */
function balancedGroups<Child>(children: readonly Child[], arity: number): readonly (readonly Child[])[] {
  const groupCount = Math.ceil(children.length / arity);
  const start = (group: number) => Math.floor((group * children.length) / groupCount);
  return Array.from({ length: groupCount }, (_, group) => children.slice(start(group), start(group + 1)));
}

export const reduceRules: readonly Rule[] = [reduceJudge];
