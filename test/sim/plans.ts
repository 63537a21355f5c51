/** Random plans over a small stock of texts, so that requests share much: every form a plan can take. */
import { foldSpan, nextBlockKey, rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { PlanRun, SegmentRef } from "../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { type BlendPart, blendRuns, blockTokens, countUp } from "../engine/plans.ts";
import type { Choices } from "./random.ts";

const salts = ["dGVuYW50LWE=", "dGVuYW50LWI="] as CacheSalt[];
const systems = [countUp(1, 3), countUp(1, 4), countUp(1, 9)];
const documents = [1, 3, 4, 5, 8, 11].map((count, i) => countUp(10 + 7 * i, count));
const questions = [countUp(60, 2), countUp(60, 4), countUp(60, 9), countUp(70, 1)];

class PlanMaker {
  readonly runs: PlanRun[] = [];
  private readonly seen: SegmentRef[] = [];
  private readonly choices: Choices;
  private readonly salt: CacheSalt;
  private mainKey: BlockKey;
  private position = 0;

  constructor(choices: Choices) {
    this.choices = choices;
    this.salt = choices.pick(salts);
    this.mainKey = rootKey("fake", this.salt, "main");
  }

  addMain(tokenIds: Int32Array, open: boolean): void {
    const blockKeys = runBlockKeys(this.mainKey, tokenIds, blockTokens, !open);
    this.push({
      kind: "main",
      tokenIds,
      position: this.position,
      sees: [...this.seen],
      blockKeys,
      rootKey: this.mainKey,
    });
    this.seen.push({ run: this.runs.length - 1, firstToken: 0, tokenCount: tokenIds.length, offset: 0 });
    this.mainKey = blockKeys.at(-1) ?? this.mainKey;
    this.position += tokenIds.length;
  }

  /** A span of its own, one under a preamble (the run before it), or a part of one (an inner answer). */
  addSpan(tokenIds: Int32Array): void {
    const preamble = this.runs.at(-1);
    const nested = preamble !== undefined && this.choices.chance(0.25);
    const parentKey = nested ? preamble.blockKeys.at(-1) : undefined;
    const position = nested ? preamble.position + preamble.tokenIds.length : 0;
    const root = rootKey("fake", this.salt, "span", parentKey);
    const blockKeys = runBlockKeys(root, tokenIds, blockTokens, true);
    const parent = this.runs.length - 1;
    const sees = nested ? [{ run: parent, firstToken: 0, tokenCount: preamble.tokenIds.length, offset: 0 }] : [];
    this.push({ kind: "span", tokenIds, position, sees, blockKeys, rootKey: root });
    const firstToken = this.choices.chance(0.25) ? this.choices.int(0, tokenIds.length - 1) : 0;
    const tokenCount = tokenIds.length - firstToken;
    const offset = this.position - position - firstToken;
    this.seen.push({ run: this.runs.length - 1, firstToken, tokenCount, offset });
    const part = nextBlockKey(blockKeys[blockKeys.length - 1], Int32Array.of(firstToken, offset));
    this.mainKey = foldSpan(this.mainKey, part);
    this.position += tokenCount;
  }

  private push(run: Omit<PlanRun, "spanId">): void {
    this.runs.push(run.kind === "span" ? { ...run, spanId: `run-${this.runs.length}` } : run);
  }
}

/** A chain that was generated and closed: its runs all closed, the last one with the output. */
export function closedChain(runs: readonly PlanRun[], output: readonly number[], closing: Int32Array): PlanRun[] {
  return runs.map((run, index) => {
    if (index < runs.length - 1) return run;
    const tokenIds = Int32Array.from([...run.tokenIds, ...output, ...closing]);
    return { ...run, tokenIds, blockKeys: runBlockKeys(run.rootKey, tokenIds, blockTokens, true) };
  });
}

/** A question over a sub-run of a closed chain's last run, at another place than it was generated at. */
export function runsOver(choices: Choices, chain: readonly PlanRun[]): PlanRun[] {
  const shown = chain[chain.length - 1];
  const firstToken = choices.int(0, Math.min(3, shown.tokenIds.length - 1));
  const tokenCount = shown.tokenIds.length - firstToken;
  const before = choices.int(0, 20);
  const offset = before - shown.position - firstToken;
  const tokenIds = choices.pick(questions);
  const part = nextBlockKey(shown.blockKeys[shown.blockKeys.length - 1], Int32Array.of(firstToken, offset));
  const root = foldSpan(rootKey("fake", choices.pick(salts), "main"), part);
  const blockKeys = runBlockKeys(root, tokenIds, blockTokens, false);
  const sees = [{ run: chain.length - 1, firstToken, tokenCount, offset }];
  const position = before + tokenCount;
  return [...chain, { kind: "main", tokenIds, position, sees, blockKeys, rootKey: root }];
}

const shares = [0, 0.3, 1];

/** Documents and system texts as one blended run, at times beside another that is prepared in the same request. */
export function randomBlendRuns(choices: Choices, open: boolean): PlanRun[] {
  const runs = oneBlend(choices, open);
  return choices.chance(0.3) ? beside(oneBlend(choices, false), runs) : runs;
}

function oneBlend(choices: Choices, open: boolean): PlanRun[] {
  const partCount = choices.int(1, 3);
  const texts: BlendPart[] = Array.from({ length: partCount }, () =>
    choices.chance(0.7) ? { copied: choices.pick(documents) } : { plain: choices.pick(systems) },
  );
  const question = open ? choices.pick(questions) : new Int32Array(0);
  return blendRuns(texts, { recomputeRatio: choices.pick(shares), question });
}

/** Both plans' runs in one plan. */
function beside(first: readonly PlanRun[], second: readonly PlanRun[]): PlanRun[] {
  const shifted = <T extends { readonly run: number }>(refs: readonly T[]): T[] =>
    refs.map((ref) => ({ ...ref, run: ref.run + first.length }));
  const later = second.map(({ blend, ...run }) => ({
    ...run,
    sees: shifted(run.sees),
    ...(blend && { blend: { ...blend, copies: shifted(blend.copies) } }),
  }));
  return [...first, ...later];
}

/** @param open the last run goes on with generated tokens. */
export function randomRuns(choices: Choices, open: boolean): PlanRun[] {
  const plan = new PlanMaker(choices);
  if (choices.chance(0.7)) plan.addMain(choices.pick(systems), false);
  const spanCount = choices.int(0, 3);
  for (let i = 0; i < spanCount; i++) plan.addSpan(choices.pick(documents));
  if (open || plan.runs.length === 0) plan.addMain(choices.pick(questions), open);
  return plan.runs;
}

/**
 * The last key over other tokens: a forced collision, which the token comparison has to refuse. Of the last
 * block only, since a real collision further up would make all keys chained from it collide as well.
 */
export function withForcedCollision(runs: readonly PlanRun[], choices: Choices): PlanRun[] {
  return runs.map((run, index) => {
    if (index < runs.length - 1 || run.blockKeys.length === 0 || run.blend !== undefined) return run;
    const start = (run.blockKeys.length - 1) * blockTokens;
    const tokenIds = Int32Array.from(run.tokenIds);
    tokenIds[choices.int(start, Math.min(start + blockTokens, tokenIds.length) - 1)] = 96;
    return { ...run, tokenIds };
  });
}
