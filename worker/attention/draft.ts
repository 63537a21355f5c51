/** Chooses how the rows of a step are packed, by estimated time, and writes the choice as items. */

import { IntList } from "../base/int-list.ts";
import type { Batch } from "../contract/batch.ts";
import { kernelTime, mergeTime } from "./estimate.ts";
import { chooseHubs, HubGrouper, type HubPacks } from "./hubs.ts";
import { ItemWriter } from "./items.ts";
import { LeafCutter, type LeafItems, leafCosts } from "./leaves.ts";
import { LeafSplitter, PartList, splitHubs } from "./parts.ts";
import { smallTiles } from "./plan-format.ts";
import { RowArranger, type RowOrder, rankStretches } from "./rows.ts";
import type { KernelCosts, PackCosts, PackShape } from "./shape.ts";
import type { Stretches } from "./sharing.ts";
import type { ItemKind, PlanWriter } from "./writer.ts";

/** Rounds of choosing hubs. Each round changes the order of rows, and so what leaf items load. */
const maxRounds = 3;
/** Numbers of items for each slot of the chip that are tried. */
const itemsPerSlot = [1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4] as const;
/** Items are not cut when the step takes at most so many times as long as it would with equal items. */
const evenEnough = 1.05;

/** How hubs are served: by leaf items alone, by small items, or by large items. */
type HubKind = ItemKind | "none";

/** Sizes of the largest leaf items that are tried, in m-tiles. */
const tileCounts = [4, 2, 1] as const satisfies readonly [typeof smallTiles, ...number[]];

/** Scratch memory of one kind of arrangement, so that trying another kind does not overwrite it. */
class Workspace {
  readonly leafArranger = new RowArranger();
  readonly hubArranger = new RowArranger();
  readonly grouper = new HubGrouper();
  /** One for each of `tileCounts`. */
  readonly cutters = tileCounts.map(() => new LeafCutter());
}

/** Which rows and stretches the items are made of. */
interface Arrangement {
  readonly kind: HubKind;
  readonly leafOrder: RowOrder;
  readonly leaves: LeafItems;
  readonly hubOrder: RowOrder | undefined;
  readonly packs: HubPacks | undefined;
}

/** The estimated time of a step, and how many tokens an item may load to reach it. */
interface Cut {
  readonly time: number;
  readonly leafPartTokens: number;
  readonly hubPartTokens: number;
}

/** Valid until the next `choose`. */
export interface PackChoice extends Cut {
  readonly arrangement: Arrangement;
}

export class PackDraft {
  readonly #shape: PackShape;
  readonly #costs: PackCosts;
  readonly #workspaces = { none: new Workspace(), small: new Workspace(), large: new Workspace() } as const;
  readonly #splitter: LeafSplitter;
  readonly #items: ItemWriter;
  /** Scratch: costs of one kernel's items. */
  readonly #kernelItems = new IntList();
  readonly #leafParts: PartList;
  readonly #hubParts: PartList;

  constructor(shape: PackShape, costs: PackCosts, writer: PlanWriter) {
    this.#shape = shape;
    this.#costs = costs;
    this.#leafParts = new PartList(costs);
    this.#hubParts = new PartList(costs);
    this.#splitter = new LeafSplitter(costs, shape.blockTokens);
    this.#items = new ItemWriter(writer, costs.rowsPerTile);
  }

  /**
   * @param hasLarge the step has a large item anyway
   * @param withHubs false: leaf items alone
   */
  choose(stretches: Stretches, rowCount: number, hasLarge: boolean, withHubs: boolean): PackChoice {
    const ranked = rankStretches(stretches);
    const allLeaves = new Uint8Array(stretches.count).fill(1);
    const plain = this.#arrange(stretches, ranked, allLeaves, rowCount, "none");
    const plainPaid = leafCosts(plain.leafOrder, plain.leaves, stretches.count, this.#costs);
    let best = this.#tryItems(stretches, allLeaves, plain, hasLarge);
    const isShared = ranked.length > 0 && stretches.readers[ranked[0] + 1] - stretches.readers[ranked[0]] > 1;
    for (const kind of isShared && withHubs ? (["small", "large"] as const) : []) {
      const mask = this.#hubsOf(stretches, ranked, rowCount, kind, plainPaid);
      if (mask === undefined) continue;
      const arrangement = this.#arrange(stretches, ranked, mask, rowCount, kind);
      const choice = this.#tryItems(stretches, mask, arrangement, hasLarge);
      if (choice.time < best.time) best = choice;
    }
    return best;
  }

  /** @param relax parts are made so many times longer than `choice` says */
  write(batch: Batch, stretches: Stretches, choice: PackChoice, relax: number): void {
    const { kind, leafOrder, hubOrder, packs } = choice.arrangement;
    this.#splitLeaves(choice.arrangement, choice.leafPartTokens * relax);
    this.#items.addLeaves({ batch, stretches, order: leafOrder }, this.#leafParts);
    if (kind === "none" || hubOrder === undefined || packs === undefined) return;
    this.#splitHubs(kind, packs, choice.hubPartTokens * relax);
    this.#items.addHubs({ batch, stretches, order: hubOrder }, packs, this.#hubParts, kind);
  }

  /** @param plainPaid what each stretch costs without hubs @returns 1 for each leaf; undefined when no hub pays */
  #hubsOf(
    stretches: Stretches,
    ranked: Int32Array,
    rowCount: number,
    kind: ItemKind,
    plainPaid: Float64Array,
  ): Uint8Array | undefined {
    const isLeaf = new Uint8Array(stretches.count).fill(1);
    const marks = { isLeaf, hasHub: new Uint8Array(rowCount) };
    // A quarter of the partial rows is kept for hubs and leaves that are split.
    const maxPartialRows = Math.floor(0.75 * this.#shape.maxPartialRows);
    const search = { stretches, ranked, costs: this.#costs, kernel: this.#costs[kind], maxPartialRows };
    let chosen = chooseHubs(search, plainPaid, marks);
    for (let round = 1, more = chosen; more > 0 && round < maxRounds; round++) {
      const { leafArranger, cutters } = this.#workspaces[kind];
      const order = leafArranger.arrange(stretches, ranked, isLeaf, rowCount);
      const leaves = cutters[0].cut(order, this.#costs, smallTiles, this.#endsOf(order));
      more = chooseHubs(search, leafCosts(order, leaves, stretches.count, this.#costs), marks);
      chosen += more;
    }
    return chosen > 0 ? isLeaf : undefined;
  }

  #arrange(stretches: Stretches, ranked: Int32Array, isLeaf: Uint8Array, rowCount: number, kind: HubKind): Arrangement {
    const { leafArranger, hubArranger, grouper, cutters } = this.#workspaces[kind];
    const leafOrder = leafArranger.arrange(stretches, ranked, isLeaf, rowCount);
    const leaves = cutters[0].cut(leafOrder, this.#costs, smallTiles, this.#endsOf(leafOrder));
    if (kind === "none") return { kind, leafOrder, leaves, hubOrder: undefined, packs: undefined };
    const isHub = Uint8Array.from(isLeaf, (leaf) => 1 - leaf);
    const hubOrder = hubArranger.arrange(stretches, ranked, isHub, rowCount);
    const packs = grouper.group(stretches, ranked, isLeaf, hubOrder, this.#costs[kind]);
    return { kind, leafOrder, leaves, hubOrder, packs };
  }

  /** Tries smaller leaf items too: they load more, but may fill the chip without partial results. */
  #tryItems(stretches: Stretches, mask: Uint8Array, arrangement: Arrangement, hasLarge: boolean): PackChoice {
    const { kind, leafOrder } = arrangement;
    const { cutters } = this.#workspaces[kind];
    const ends = this.#endsOf(leafOrder);
    let best: PackChoice = { ...this.#cutOf(stretches, mask, arrangement, hasLarge), arrangement };
    if (arrangement.leaves.count > (2 * this.#costs.itemSlots) / this.#costs.small.loneRate) return best;
    for (let i = 1; i < tileCounts.length; i++) {
      const leaves = cutters[i].cut(leafOrder, this.#costs, tileCounts[i], ends);
      const other = { ...arrangement, leaves };
      const cut = this.#cutOf(stretches, mask, other, hasLarge);
      if (cut.time < best.time) best = { ...cut, arrangement: other };
    }
    return best;
  }

  /** Without packing: marks each row that shares nothing with the row before it, where an item has to end. */
  #endsOf({ count, sharedDepth }: RowOrder): Uint8Array | undefined {
    if (this.#shape.packing) return undefined;
    return Uint8Array.from({ length: count }, (_, i) => (sharedDepth[i] === 0 ? 1 : 0));
  }

  /** The best cut of an arrangement, and how long the step takes with it. */
  #cutOf(stretches: Stretches, isLeaf: Uint8Array, arrangement: Arrangement, hasLarge: boolean): Cut {
    const costs = this.#costs;
    const { kind, packs } = arrangement;
    let leafTokens = 0;
    let hubTokens = 0;
    for (let i = 0; i < stretches.count; i++) {
      if (isLeaf[i] === 1) leafTokens += stretches.room[i];
      else hubTokens += stretches.room[i];
    }
    const leafParts = this.#leafParts;
    const hubParts = this.#hubParts;
    const splitLeaves = (partTokens: number) => this.#splitLeaves(arrangement, partTokens);
    hubParts.clear(costs.small);
    if (kind === "none" || packs === undefined) {
      const { time, partTokens } = this.#bestPart(leafTokens, costs.small, splitLeaves);
      return { time, leafPartTokens: partTokens, hubPartTokens: partTokens };
    }
    if (kind === "small") {
      const both = this.#bestPart(leafTokens + hubTokens, costs.small, (partTokens) => {
        splitLeaves(partTokens);
        this.#splitHubs(kind, packs, partTokens);
      });
      return { time: both.time, leafPartTokens: both.partTokens, hubPartTokens: both.partTokens };
    }
    const leaf = this.#bestPart(leafTokens, costs.small, splitLeaves);
    leafParts.clear(costs.small);
    const hub = this.#bestPart(hubTokens, costs.large, (partTokens) => this.#splitHubs(kind, packs, partTokens));
    const launch = hasLarge ? 0 : costs.launch;
    return { time: leaf.time + hub.time + launch, leafPartTokens: leaf.partTokens, hubPartTokens: hub.partTokens };
  }

  #splitLeaves({ kind, leafOrder, leaves }: Arrangement, partTokens: number): void {
    this.#leafParts.clear(this.#costs.small);
    this.#splitter.split(leafOrder, leaves, kind !== "none", partTokens, this.#leafParts);
  }

  #splitHubs(kind: ItemKind, packs: HubPacks, partTokens: number): void {
    this.#hubParts.clear(this.#costs[kind]);
    splitHubs(packs, this.#costs, this.#costs[kind].rows, this.#shape.blockTokens, partTokens, this.#hubParts);
  }

  /** @param split makes the parts of one kernel: leaf parts, hub parts, or both */
  #bestPart(
    memoryTokens: number,
    kernel: KernelCosts,
    split: (partTokens: number) => void,
  ): { partTokens: number; time: number } {
    const costs = this.#costs;
    const timeOf = (partTokens: number): number => {
      split(partTokens);
      this.#kernelItems.clear();
      this.#kernelItems.append(this.#leafParts.itemCosts.view());
      this.#kernelItems.append(this.#hubParts.itemCosts.view());
      // Merges of rows that large items serve too come with their leaf items.
      const merged = Math.max(this.#leafParts.mergedTiles, kernel === costs.large ? 0 : this.#hubParts.mergedTiles);
      return kernelTime(this.#kernelItems.view(), memoryTokens, kernel, costs) + mergeTime(merged, costs);
    };
    let best = { partTokens: Number.POSITIVE_INFINITY, time: timeOf(Number.POSITIVE_INFINITY) };
    const totalLoads = this.#leafParts.totalLoads + this.#hubParts.totalLoads;
    const total = this.#kernelItems.view().reduce((sum, cost) => sum + cost, 0);
    const even = Math.max(total, memoryTokens * costs.memoryToken) / costs.itemSlots;
    if (best.time <= evenEnough * even) return best;
    for (const count of itemsPerSlot) {
      const partTokens = Math.ceil(totalLoads / costs.itemSlots / count);
      const time = timeOf(partTokens);
      if (time < best.time) best = { partTokens, time };
      if (partTokens <= costs.minPartTokens) break;
    }
    return best;
  }
}
