/**
 * The high-level rewriter: applies a table of rules (rules/table.ts) until none fires. Pure: no clock, no I/O, and
 * retrieval is resolved before.
 *
 * A pass goes through the tree from the leaves up and applies at each node the first rule that fires, until none does.
 * Passes are repeated until one changes nothing. That is done for the rules that expand, then for all others; those
 * make nothing that expands, so the result is a fixpoint of the whole table.
 *
 * Why it ends. Expansion removes chats, zips, maps in prompts, retrieveds and repeats of one, and nothing makes them.
 * Distribution makes generates that expose their output alone, which it does not touch. Reduction leaves a judge no
 * plus and makes judges that are small enough. Simplification removes nodes, sorting only sorts,
 * merging leaves fewer objects, and a whole query becomes a map once. The bounds below are far above what this takes
 * and only turn a wrong rule into an error.
 *
 * One generate object is one run (ir.ts). A pass remembers by object what became of each node, and what became of a
 * run does not depend on where it stands: it is the same object everywhere again.
 */
import { childrenOf, type Generate, type Query, type Repeat } from "../ir.ts";
import { checkLegal } from "../legality.ts";
import { canonicalKey } from "../print.ts";
import { mapChildren } from "../transform.ts";
import type { Place, Rule, RuleContext } from "./rule.ts";
import { standardRules } from "./table.ts";

export interface RewriteOptions {
  /** false: the engine reuses no spans. This holds for the whole query, since two prompts may read the same run. */
  readonly spans?: boolean;
  /** false: the engine cannot run a map as one request. */
  readonly bulkMap?: boolean;
  /** Arity for judges that give none, at least 2. Absent: such judges stay as they are. */
  readonly reduceArity?: number;
  /** Called with the whole query after each pass that changed it. */
  readonly afterPass?: (query: Query) => void;
}

/** One application of a rule. */
export interface RewriteStep {
  readonly rule: string;
  /** Path of the node in the query before the pass, as in `$.g.input.plus[2]`. */
  readonly path: string;
  readonly before: Query;
  readonly after: Query;
}

export interface Rewritten {
  readonly query: Query;
  /** The first `maxSteps` steps, in order. */
  readonly steps: readonly RewriteStep[];
}

export const maxSteps = 1_000;
const maxPasses = 32;
/** Nodes to visit before yielding. */
const nodesPerStep = 128;
/** The two phases, and the stage of legality that holds after each. */
const phases = [
  ["expand", "expanded"],
  ["improve", "rewritten"],
] as const;
/** Most applications of rules to one node within one pass. */
const maxApplications = 64;

/**
 * Rewrites a query. Yields after some nodes and after each check, since a query at its limits takes some milliseconds
 * for one pass.
 * @param query resolved: no retrieve or augment is left
 * @throws IllegalQueryError when the query is not resolved, or a rule made what must not be
 */
export function* rewriteInSteps(
  query: Query,
  options: RewriteOptions = {},
  rules = standardRules,
): Generator<void, Rewritten> {
  if (options.reduceArity !== undefined && !(Number.isInteger(options.reduceArity) && options.reduceArity >= 2)) {
    throw new RangeError(`reduceArity must be a whole number from 2, not ${options.reduceArity}`);
  }
  checkLegal(query, "resolved");
  yield;
  const steps: RewriteStep[] = [];
  let current = query;
  for (const [phase, stage] of phases) {
    const inPhase = rules.filter((rule) => rule.phase === phase);
    current = yield* new Rewriter(options, inPhase, steps).toFixpoint(current);
    if (rules !== standardRules) continue;
    checkLegal(current, stage);
    yield;
  }
  return { query: current, steps };
}

/** The steps from a node up to the root. A path is made from them only when it is needed, which is rare. */
interface Trail {
  readonly up: Trail | undefined;
  readonly parent: Query;
  readonly index: number;
}

class Rewriter {
  readonly #options: RewriteOptions;
  readonly #steps: RewriteStep[];
  readonly #rulesOf = new Map<Query["kind"], Rule[]>();
  readonly #contexts: Readonly<Record<Place, RuleContext>>;
  readonly #equality = new Equality();
  readonly #renamed = new Map<Query, Generate | Repeat>();
  readonly #stepsOf = new Map<Query, readonly string[]>();
  #done: Readonly<Record<Place | "run", Map<Query, Query>>> = emptyMemory();
  #visited = 0;

  constructor(options: RewriteOptions, rules: readonly Rule[], steps: RewriteStep[]) {
    this.#options = options;
    this.#steps = steps;
    for (const rule of rules) {
      for (const kind of rule.kinds) this.#rulesOf.set(kind, [...(this.#rulesOf.get(kind) ?? []), rule]);
    }
    const { keyOf, isGreedy, representative } = this.#equality;
    const { spans = true, bulkMap = true, reduceArity } = options;
    const contextAt = (place: Place): RuleContext => ({
      place,
      spans,
      bulkMap,
      reduceArity,
      keyOf,
      isGreedy,
      representative,
      rename: (run) => this.#rename(run),
    });
    this.#contexts = {
      root: contextAt("root"),
      program: contextAt("program"),
      prompt: contextAt("prompt"),
      effect: contextAt("effect"),
    };
  }

  *toFixpoint(query: Query): Generator<void, Query> {
    let current = query;
    for (let pass = 0; pass < maxPasses; pass++) {
      const next = yield* this.#pass(current);
      yield;
      if (next === current) return current;
      this.#options.afterPass?.(next);
      current = next;
    }
    throw new Error(`rules still fire after ${maxPasses} passes; the last was ${this.#steps.at(-1)?.rule}`);
  }

  /** Returns the query itself when no rule applies. */
  *#pass(query: Query): Generator<void, Query> {
    this.#done = emptyMemory();
    this.#equality.beginPass();
    const renamedBefore = this.#renamed.size;
    yield* this.#visitInside(query, "root", undefined);
    const rewritten = this.#visit(query, "root", undefined);
    return this.#renamed.size === renamedBefore ? rewritten : this.#withNames(rewritten, new Map());
  }

  /** Visits everything inside the node, a few nodes at a time, so that `#visit` of the node finds its parts done. */
  *#visitInside(query: Query, place: Place, trail: Trail | undefined): Generator<void, void> {
    const inner = placeInside(query, place);
    for (const [index, [, child]] of childrenOf(query).entries()) {
      if (this.#doneAt(child, inner).has(child)) continue;
      const below = { up: trail, parent: query, index };
      yield* this.#visitInside(child, inner, below);
      this.#visit(child, inner, below);
      this.#visited += 1;
      if (this.#visited % nodesPerStep === 0) yield;
    }
  }

  /** The results for nodes of this kind at this place. */
  #doneAt({ kind }: Query, place: Place): Map<Query, Query> {
    const isRun = kind === "generate" || kind === "repeat" || kind === "chat";
    return this.#done[isRun ? "run" : place];
  }

  #visit(query: Query, place: Place, trail: Trail | undefined): Query {
    const done = this.#doneAt(query, place);
    const known = done.get(query);
    if (known !== undefined) return known;
    const inner = placeInside(query, place);
    const walked = mapChildren(query, (child, index) => this.#visit(child, inner, { up: trail, parent: query, index }));
    const result = this.#applyAll(walked, this.#contexts[place], trail);
    done.set(query, result);
    return result;
  }

  #applyAll(query: Query, context: RuleContext, trail: Trail | undefined): Query {
    let current = query;
    for (let count = 0; count < maxApplications; count++) {
      const next = this.#applyFirst(current, context, trail);
      if (next === undefined) return current;
      current = next;
    }
    throw new Error(`rules still fire after ${maxApplications} applications at ${this.#pathOf(trail)}`);
  }

  #applyFirst(query: Query, context: RuleContext, trail: Trail | undefined): Query | undefined {
    for (const rule of this.#rulesOf.get(query.kind) ?? []) {
      const after = rule.apply(query, context);
      if (after === undefined) continue;
      if (this.#steps.length < maxSteps)
        this.#steps.push({ rule: rule.name, path: this.#pathOf(trail), before: query, after });
      return after;
    }
    return undefined;
  }

  #pathOf(trail: Trail | undefined): string {
    if (trail === undefined) return "$";
    const { up, parent, index } = trail;
    const steps = this.#stepsOf.get(parent) ?? childrenOf(parent).map(([step]) => step);
    this.#stepsOf.set(parent, steps);
    return this.#pathOf(up) + (steps[index] ?? "");
  }

  /** The run as one that exposes only its output. `#withNames` puts it at every place of the run. */
  #rename(run: Generate | Repeat): Generate | Repeat {
    const known = this.#renamed.get(run);
    if (known !== undefined) return known;
    const generate = run.kind === "generate" ? run : run.generate;
    const renamed: Generate = { ...generate, options: { ...generate.options, expose: "output" } };
    const made = run.kind === "generate" ? renamed : { ...run, generate: renamed };
    this.#renamed.set(run, made);
    return made;
  }

  #withNames(query: Query, done: Map<Query, Query>): Query {
    const known = done.get(query);
    if (known !== undefined) return known;
    const renamed = this.#renamed.get(query);
    const result =
      renamed === undefined
        ? mapChildren(query, (child) => this.#withNames(child, done))
        : this.#withNames(renamed, done);
    done.set(query, result);
    return result;
  }
}

function emptyMemory(): Record<Place | "run", Map<Query, Query>> {
  return { root: new Map(), program: new Map(), prompt: new Map(), effect: new Map(), run: new Map() };
}

function placeInside(query: Query, place: Place): Place {
  switch (query.kind) {
    case "generate":
    case "chat":
    case "retrieve":
    case "augment":
      return "prompt";
    case "monad":
      return "effect";
    default:
      return place === "root" ? "program" : place;
  }
}

/** Knows which nodes are equal during one rewriting. Nodes are immutable, so results stay valid. */
class Equality {
  readonly #keys = new Map<Query, string>();
  readonly #greedy = new Map<Query, boolean>();
  readonly #first = new Map<string, Generate | Repeat>();

  /** The same key exactly for nodes that are equal in structure. */
  readonly keyOf = (query: Query): string => canonicalKey(query, this.#keys);

  /** Whether no sample is drawn inside the node, so that running it twice gives the same output. */
  readonly isGreedy = (query: Query): boolean => {
    const areGreedy = (): boolean => childrenOf(query).every(([, child]) => this.isGreedy(child));
    return this.#greedy.getOrInsertComputed(query, () => drawsNone(query) && areGreedy());
  };

  /**
   * Forgets which of several equal runs came first. In one pass, the result of a rule may be compared before the parts
   * inside it, so the first run may hold inner runs that were replaced later.
   */
  beginPass(): void {
    this.#first.clear();
  }

  readonly representative = <Run extends Generate | Repeat>(run: Run): Run => {
    // The key differs between generates and repeats, so the type is the same.
    const first = this.#first.get(this.keyOf(run)) as Run | undefined;
    if (first !== undefined) return first;
    this.#first.set(this.keyOf(run), run);
    return run;
  };
}

/** Whether the node itself draws no sample. Chats are expanded to generates before this is asked. */
function drawsNone(query: Query): boolean {
  return (query.kind !== "generate" && query.kind !== "map") || query.options.temperature === 0;
}
