/** Fewer nodes for the same thing: nothing is seen or run otherwise than before. Each rule removes a node. */
import { childrenOf, type Query } from "../ir.ts";
import { isEmpty, isOrdered, isRun, nothing, orderedKinds } from "../nodes.ts";
import { type Rule, ruleOn } from "./rule.ts";

/**
 * Not around a generate in a prompt: a seq shows its output alone, as words of the chain around it, and a plus around
 * the seq would take the generate for its own child (ir.ts, expose). A plus of one stays: its child does not see what
 * stands before it.
 */
const onlyChild = ruleOn(orderedKinds, "only-child", "seq[a] -> a", ({ children }, { place }) => {
  const [child, ...others] = children;
  if (child === undefined || others.length > 0) return undefined;
  return place === "prompt" && isRun(child) ? undefined : child;
});

/** Outside prompts a join's kind says how it is run and answered, so only like joins are one. */
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
 * The inner plus is a span without a word of its own, and its children do not see it: they stand as spans of the
 * outer one. Not with a preamble on either side: the inner one's is for its own children, the outer one's is seen by
 * its children but not by their spans.
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

/** Something is run, prepared or searched for. */
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
