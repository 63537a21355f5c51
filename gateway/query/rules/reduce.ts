/**
 * Attention locality: a judge over many commutative children becomes a tree of judges over few each. Attention spreads
 * thinner the more there is to read; a judge over m children reads no more than m at any level.
 */
import { childrenOf, type Generate, type Plus, type Query } from "../ir.ts";

import { queryLimits } from "../limits.ts";
import { isOrdered, judgeCount } from "../nodes.ts";
import { type Rule, ruleOn } from "./rule.ts";

/**
 * Judges above the first ones read answers in an ordered join, so that these are computed in place like any text: an
 * answer's own KV says where in its sources it goes on, and a reader of several such answers loses half of them
 * (`bench needle` shows what the tree finds). The plus was brought into canonical order before (children are rewritten
 * before their parents), so the same set is always grouped in the same way.
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
    // Parse refuses this for an arity of its own. For the server's, a judge with very many messages stays whole.
    if (childrenOf(judge.input).length * judgeCount(judged.length, arity) > queryLimits.copiedNodes) return undefined;
    let judges = balancedGroups(judged, arity).map((group) => innerJudge(judge, plus, { ...plus, children: group }));
    while (judges.length > arity) {
      judges = balancedGroups(judges, arity).map((group) => {
        const [only] = group;
        // One answer needs no judge: it goes up as it is.
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

/** Its own arity goes with it: where the server's is smaller, it is not split again. */
function innerJudge(judge: Generate, plus: Plus, join: Query): Generate {
  const input = isOrdered(judge.input)
    ? { ...judge.input, children: judge.input.children.filter(({ kind }) => kind !== "monad") }
    : judge.input;
  return { kind: "generate", options: { ...judge.options, expose: "output" }, input: withJoin(input, plus, join) };
}

/** The input with something else in the place of its plus. */
function withJoin(input: Query, plus: Plus, join: Query): Query {
  if (!isOrdered(input)) return join;
  return { ...input, children: input.children.map((part) => (part === plus ? join : part)) };
}

/** As few groups as the arity allows, in order, their sizes at most one apart. */
function balancedGroups<Child>(children: readonly Child[], arity: number): readonly (readonly Child[])[] {
  const groupCount = Math.ceil(children.length / arity);
  const start = (group: number) => Math.floor((group * children.length) / groupCount);
  return Array.from({ length: groupCount }, (_, group) => children.slice(start(group), start(group + 1)));
}

export const reduceRules: readonly Rule[] = [reduceJudge];
