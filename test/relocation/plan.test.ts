/** Launches of moves on a simulated memory, against the parallel assignment that they stand for. */
import { describe, expect, test } from "bun:test";
import type { BlockId } from "../../worker/contract/units.ts";
import { type BlockMove, launchCopies, planRelocation } from "../../worker/relocation/plan.ts";
import { Choices } from "../sim/random.ts";

const blockTokens = 4;
const block = (id: number): BlockId => id as BlockId;
const move = (target: number, source: number, delta = 0, tokenCount = blockTokens): BlockMove => ({
  source: block(source),
  target: block(target),
  delta,
  tokenCount,
});

/** What a slot holds: the slot it was written in first, and how far it was turned since. */
interface Content {
  readonly origin: number;
  readonly turned: number;
  readonly turns: number;
}

function freshMemory(blockCount: number): Content[] {
  return Array.from({ length: blockCount * blockTokens }, (_, origin) => ({ origin, turned: 0, turns: 0 }));
}

/** All at once, from the definition. */
function assigned(memory: readonly Content[], moves: readonly BlockMove[]): Content[] {
  const after = [...memory];
  for (const { source, target, delta, tokenCount } of moves) {
    for (let token = 0; token < tokenCount; token++) {
      const { origin, turned } = memory[source * blockTokens + token];
      after[target * blockTokens + token] = { origin, turned: turned + delta, turns: delta === 0 ? 0 : 1 };
    }
  }
  return after;
}

/** Launch by launch; tokens of one launch run in any order, each reading what is there by then. */
function launched(memory: readonly Content[], launches: readonly BlockMove[][], choices: Choices): Content[] {
  const after = [...memory];
  for (const launch of launches) {
    const { sourceSlots, targetSlots, deltas } = launchCopies(launch, blockTokens);
    expect(new Set(targetSlots).size).toBe(targetSlots.length);
    const order = Array.from(sourceSlots.keys(), (i) => ({ i, at: choices.next() })).sort((a, b) => a.at - b.at);
    for (const { i } of order) {
      const { origin, turned, turns } = after[sourceSlots[i]];
      const delta = deltas[i];
      after[targetSlots[i]] = { origin, turned: turned + delta, turns: turns + (delta === 0 ? 0 : 1) };
    }
  }
  return after;
}

/** Distinct targets, any sources: copies, moves in place and chains, and now and then a cycle. */
function randomMoves(choices: Choices, blockCount: number): BlockMove[] {
  const ids = Array.from({ length: blockCount }, (_, id) => ({ id, at: choices.next() })).sort((a, b) => a.at - b.at);
  const targets = ids.slice(0, choices.int(0, blockCount)).map(({ id }) => id);
  const style = choices.pick(["any", "chain", "in place"]);
  return targets.map((target, i) => {
    const source = style === "any" ? choices.int(0, blockCount - 1) : (targets[i + 1] ?? blockCount - 1);
    const delta = choices.chance(0.3) ? 0 : choices.int(-50, 50);
    return move(target, style === "in place" ? target : source, delta, choices.int(1, blockTokens));
  });
}

/** Whether moves of different blocks wait for each other, found by following sources. */
function hasCycle(moves: readonly BlockMove[]): boolean {
  const writers = new Map(moves.map((one) => [one.target, one]));
  return moves.some(({ target, source: first }) => {
    const path = new Set<BlockId>([target]);
    for (let at = first; ; ) {
      if (path.has(at)) return writers.get(at)?.source !== at;
      path.add(at);
      const writer = writers.get(at);
      if (writer === undefined) return false;
      at = writer.source;
    }
  });
}

describe("planRelocation", () => {
  test("launches give what all moves at once would, whatever runs first within a launch", () => {
    let [planned, refused] = [0, 0];
    for (let seed = 1; seed <= 2_000; seed++) {
      const choices = new Choices(seed);
      const blockCount = choices.int(1, 24);
      const moves = randomMoves(choices, blockCount);
      const launchTokens = choices.pick([blockTokens, 2 * blockTokens + 1, 1_000]);
      if (hasCycle(moves)) {
        expect(() => planRelocation(moves, launchTokens)).toThrow("moves wait for each other");
        refused += 1;
        continue;
      }
      const launches = planRelocation(moves, launchTokens);
      const memory = freshMemory(blockCount);
      expect(launched(memory, launches, choices)).toEqual(assigned(memory, moves));
      for (const launch of launches) {
        expect(launch.length).toBeGreaterThan(0);
        expect(launch.reduce((sum, { tokenCount }) => sum + tokenCount, 0)).toBeLessThanOrEqual(launchTokens);
      }
      const moved = moves.filter(({ source, target, delta }) => source !== target || delta !== 0).length;
      expect(launches.flat().length).toBe(moved);
      planned += 1;
    }
    expect(planned).toBeGreaterThan(1_000);
    expect(refused).toBeGreaterThan(100);
  });

  test("a block is copied before it is turned in place", () => {
    const launches = planRelocation([move(0, 0, 7), move(1, 0, -3), move(2, 0)], 100);
    expect(launches).toEqual([[move(1, 0, -3), move(2, 0)], [move(0, 0, 7)]]);
  });

  test("the longest chain goes first, so that launches are as few as they can be", () => {
    const chain = [move(0, 1), move(1, 2), move(2, 3), move(3, 4)];
    const others = [5, 6, 7, 8].map((target) => move(target, 20 + target));
    const launches = planRelocation([...others, ...chain], 2 * blockTokens);
    expect(launches.map((launch) => launch.length)).toEqual([2, 2, 2, 2]);
  });

  test("what stays where it is takes no launch", () => {
    expect(planRelocation([move(3, 3)], 4)).toEqual([]);
    expect(planRelocation([], 4)).toEqual([]);
  });

  test("refuses what is no assignment", () => {
    expect(() => planRelocation([move(0, 1), move(0, 2)], 4)).toThrow("moved to twice");
    expect(() => planRelocation([move(0, 1, 0, 5)], 4)).toThrow("exceeds a launch");
  });
});
