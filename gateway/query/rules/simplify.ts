/** Rules that remove a node and change nothing of what is seen or run. */
import { childrenOf, type Query } from "../ir.ts";
import { isEmpty, isOrdered, isRun, nothing, orderedKinds } from "../nodes.ts";
import { type Rule, ruleOn } from "./rule.ts";

/**
 * The rule does not apply to a seq around a generate in a prompt. The seq shows only the generate's output, as part of
 * the chain around it, while a plus around the seq would treat the generate as its own child (ir.ts, expose). A plus
 * with one child stays too, since its child does not see what stands before it.
 */
const onlyChild = ruleOn(orderedKinds, "only-child", "seq[a] -> a", ({ children }, { place }) => {
  const [child, ...others] = children;
  if (child === undefined || others.length > 0) return undefined;
  return place === "prompt" && isRun(child) ? undefined : child;
});

/** Outside prompts, the kind of a join says how it is run and answered, so only joins of the same kind are merged. */
const flattenOrdered = ruleOn(
  orderedKinds,
  "flatten-ordered",
  "seq[a, seq[b, c]] -> seq[a, b, c]",
  (join, { place }) => {
    const isLike = (child: Query) => isOrdered(child) && (place === "prompt" || child.kind === join.kind);
    if (!join.children.some(isLike)) return undefined;
    const children = join.children.flatMap((child) => (isOrdered(child) && isLike(child) ? child.children : [child]));
    return { ...join, children };
  },
);

/**
 * The inner plus is a span without text of its own, and its children do not see it, so they can be spans of the outer
 * plus. This does not hold with a preamble: the inner plus's preamble is for its own children, and the outer one's is
 * seen by the outer plus's children but not by the spans inside them.
 */
const flattenPlus = ruleOn(["plus"], "flatten-plus", "plus[a, plus[b, c]] -> plus[a, b, c]", (plus) => {
  const isBare = (child: Query) => child.kind === "plus" && child.preamble === undefined;
  if (!isBare(plus) || !plus.children.some(isBare)) return undefined;
  return {
    ...plus,
    children: plus.children.flatMap((child) => (child.kind === "plus" && isBare(child) ? child.children : [child])),
  };
});

const flattenMonad = ruleOn(["monad"], "flatten-monad", "monad monad a -> monad a", ({ child }) =>
  child.kind === "monad" ? child : undefined,
);

const idleMonad = ruleOn(
  ["monad"],
  "idle-monad",
  "monad a -> nothing, where a runs and prepares nothing",
  ({ child }) => (hasEffect(child) ? undefined : nothing),
);

/** Whether the node runs, prepares or searches for anything. */
function hasEffect(query: Query): boolean {
  switch (query.kind) {
    case "generate":
    case "repeat":
    case "map":
    case "chat":
    case "fragment":
    case "retrieved":
    case "retrieve":
    case "augment":
      return true;
    default:
      return childrenOf(query).some(([, child]) => hasEffect(child));
  }
}

const dropEmpty = ruleOn([...orderedKinds, "plus"], "drop-empty", "join[a, seq[]] -> join[a]", (join) => {
  if (join.kind === "plus" && join.preamble !== undefined && isEmpty(join.preamble)) {
    return { kind: "plus", children: join.children };
  }
  return join.children.some(isEmpty)
    ? { ...join, children: join.children.filter((child) => !isEmpty(child)) }
    : undefined;
});

export const simplifyRules: readonly Rule[] = [
  flattenMonad,
  idleMonad,
  dropEmpty,
  onlyChild,
  flattenOrdered,
  flattenPlus,
];
