/**
 * Hubs: stretches that so many rows read that items of their own pay, although each of their rows then gets a partial
 * result more. When all rows of a hub read another hub too, its items may take in the tokens of the other one. That
 * saves the partial results of its rows and costs reading these tokens once more.
 */
import { IntList } from "../base/int-list.ts";
import type { RowOrder } from "./rows.ts";
import type { KernelCosts, PackCosts } from "./shape.ts";
import type { Stretches } from "./sharing.ts";

/** Rows of one hub and what its items read: struct of arrays, valid until the next `group`. */
export interface HubPacks {
  readonly count: number;
  /** [count + 1] rows of each pack, as places in the order of hubs' rows. */
  readonly firstRow: Int32Array;
  readonly rows: Int32Array;
  /** [count + 1] stretches of each pack. */
  readonly firstStretch: Int32Array;
  readonly stretches: Int32Array;
  /** [count] tokens of a pack's stretches. */
  readonly tokens: Int32Array;
}

/** Which stretches are hubs; the marks change as more are chosen. */
export interface HubMarks {
  /** [stretches] 0: a hub. */
  readonly isLeaf: Uint8Array;
  /** [rows] 1: the row has a partial result of a hub. */
  readonly hasHub: Uint8Array;
}

export interface HubSearch {
  readonly stretches: Stretches;
  /** Most readers first. */
  readonly ranked: Int32Array;
  readonly costs: PackCosts;
  /** Serves the hubs. */
  readonly kernel: KernelCosts;
  /** The most partial results that all hubs and the leaf items of their rows may have together, before items are cut. */
  readonly maxPartialRows: number;
}

/**
 * Marks further stretches as hubs: those that leaf items load oftener than items of their own would, by more than the
 * partial results cost. Most readers first.
 * @param paid what leaf items pay for each token of a stretch
 * @returns how many stretches became hubs
 */
export function chooseHubs(
  { stretches, ranked, costs, kernel, maxPartialRows }: HubSearch,
  paid: Float64Array,
  { isLeaf, hasHub }: HubMarks,
): number {
  const { readers, rows, room, causalRow } = stretches;
  const hubItem = Math.max(1, (kernel.tile * kernel.rows) / costs.rowsPerTile);
  let left = maxPartialRows;
  for (const row of hasHub) left -= row;
  for (const stretch of ranked) if (isLeaf[stretch] === 0) left -= readers[stretch + 1] - readers[stretch];
  let chosen = 0;
  for (const stretch of ranked) {
    const count = readers[stretch + 1] - readers[stretch];
    if (count < 2) break;
    if (isLeaf[stretch] === 0 || causalRow[stretch] >= 0) continue;
    const saved = (paid[stretch] - hubItem * Math.ceil(count / kernel.rows)) * room[stretch];
    if (saved <= kernel.partialRow * count) continue;
    let leafRows = 0;
    for (let i = readers[stretch]; i < readers[stretch + 1]; i++) leafRows += 1 - hasHub[rows[i]];
    if (saved <= kernel.partialRow * count + costs.small.partialRow * leafRows + costs.item) continue;
    if (count + leafRows > left) continue;
    left -= count + leafRows;
    isLeaf[stretch] = 0;
    chosen += 1;
    for (let i = readers[stretch]; i < readers[stretch + 1]; i++) hasHub[rows[i]] = 1;
  }
  return chosen;
}

/** How many hubs of a row are tried as the one whose tokens a smaller hub takes in. */
const maxTried = 4;

export class HubGrouper {
  #parent = new Int32Array(64);
  #left = new Int32Array(64);
  #listed = new Int32Array(64);
  /** [readers] 1: the row reads the stretch in the items of a smaller hub. */
  #isMoved = new Uint8Array(64);
  readonly #firstRow = new IntList();
  readonly #rows = new IntList();
  readonly #firstStretch = new IntList();
  readonly #packStretches = new IntList();
  readonly #tokens = new IntList();

  /** @param order of the rows by their hubs alone @param kernel that serves the hubs */
  group(stretches: Stretches, ranked: Int32Array, isLeaf: Uint8Array, order: RowOrder, kernel: KernelCosts): HubPacks {
    this.#reserve(stretches);
    for (const list of [this.#firstRow, this.#rows, this.#firstStretch, this.#packStretches, this.#tokens])
      list.clear();
    this.#isMoved.fill(0, 0, stretches.readers[stretches.count]);
    for (const hub of ranked) {
      if (isLeaf[hub] === 1) continue;
      this.#parent[hub] = -1;
      this.#listed[hub] = stretches.room[hub];
      this.#left[hub] = stretches.readers[hub + 1] - stretches.readers[hub];
      this.#join(stretches, hub, order, kernel);
    }
    // Rows of a hub in the order in which rows of smaller hubs stand together.
    const placed = this.#placeRows(stretches, order);
    for (const hub of ranked) if (isLeaf[hub] === 0) this.#addPack(stretches, hub, placed);
    this.#firstRow.push(this.#rows.length);
    this.#firstStretch.push(this.#packStretches.length);
    return {
      count: this.#tokens.length,
      firstRow: this.#firstRow.memory,
      rows: this.#rows.memory,
      firstStretch: this.#firstStretch.memory,
      stretches: this.#packStretches.memory,
      tokens: this.#tokens.memory,
    };
  }

  /** Lets a hub take in the smallest hub that all its rows read, if that is cheaper. */
  #join(stretches: Stretches, hub: number, order: RowOrder, kernel: KernelCosts): void {
    const { rows: itemRows, partialRow } = kernel;
    const { readers, rows } = stretches;
    const count = readers[hub + 1] - readers[hub];
    const row = rows[readers[hub]];
    let place = order.starts[row];
    while (order.stretches[place] !== hub) place += 1;
    for (let tried = 0; tried < maxTried && --place >= order.starts[row]; tried++) {
      const parent = order.stretches[place];
      if (!this.#isWithin(stretches, hub, parent, order)) continue;
      const rest = this.#left[parent];
      const items = Math.ceil((rest - count) / itemRows) + Math.ceil(count / itemRows) - Math.ceil(rest / itemRows);
      if (items * this.#listed[parent] >= partialRow * count) return;
      this.#parent[hub] = parent;
      this.#listed[hub] += this.#listed[parent];
      this.#left[parent] -= count;
      for (let i = readers[hub]; i < readers[hub + 1]; i++) this.#isMoved[readerOf(order, rows[i], parent)] = 1;
      return;
    }
  }

  /** Whether all rows of a hub read another hub, none of them through the items of a third one. */
  #isWithin({ readers, rows }: Stretches, hub: number, other: number, order: RowOrder): boolean {
    for (let i = readers[hub]; i < readers[hub + 1]; i++) {
      const reader = readerOf(order, rows[i], other);
      if (reader < 0 || this.#isMoved[reader] === 1) return false;
    }
    return true;
  }

  /** [readers] rows of each hub by the order. */
  #placeRows(stretches: Stretches, order: RowOrder): Int32Array {
    const next = stretches.readers.slice(0, stretches.count);
    const placed = new Int32Array(stretches.readers[stretches.count]);
    for (let i = 0; i < order.count; i++) {
      const row = order.rows[i];
      for (let place = order.starts[row]; place < order.starts[row + 1]; place++) {
        const hub = order.stretches[place];
        if (this.#isMoved[order.readers[place]] === 0) placed[next[hub]++] = row;
      }
    }
    return placed;
  }

  #addPack({ readers, room }: Stretches, hub: number, placed: Int32Array): void {
    if (this.#left[hub] === 0) return;
    this.#firstRow.push(this.#rows.length);
    for (let i = 0; i < this.#left[hub]; i++) this.#rows.push(placed[readers[hub] + i]);
    this.#firstStretch.push(this.#packStretches.length);
    let tokens = 0;
    for (let at = hub; at >= 0; at = this.#parent[at]) {
      this.#packStretches.push(at);
      tokens += room[at];
    }
    this.#tokens.push(tokens);
  }

  #reserve({ count, readers }: Stretches): void {
    if (this.#parent.length < count) {
      this.#parent = new Int32Array(2 * count);
      this.#left = new Int32Array(2 * count);
      this.#listed = new Int32Array(2 * count);
    }
    if (this.#isMoved.length < readers[count]) this.#isMoved = new Uint8Array(2 * readers[count]);
  }
}

/** The row's place among a stretch's readers; -1 if it reads it not. */
export function readerOf(order: RowOrder, row: number, stretch: number): number {
  for (let place = order.starts[row]; place < order.starts[row + 1]; place++) {
    if (order.stretches[place] === stretch) return order.readers[place];
  }
  return -1;
}
