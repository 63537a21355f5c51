/** Writes the items of a plan from its parts (parts.ts). */
import type { Batch } from "../contract/batch.ts";
import { type HubPacks, readerOf } from "./hubs.ts";
import { type PartList, partField, partWords } from "./parts.ts";
import type { RowOrder } from "./rows.ts";
import type { Stretches } from "./sharing.ts";
import type { ItemKind, PlanWriter } from "./writer.ts";

/** The rows and stretches that parts belong to. */
export interface PartSource {
  readonly batch: Batch;
  readonly stretches: Stretches;
  readonly order: RowOrder;
}

/** Places in the order of rows: those of an item, and stretches of theirs from `depth` on. */
interface LeafPart {
  readonly first: number;
  readonly end: number;
  readonly depth: number;
}

/** Tokens of the stretches `depth` to `endDepth` that all rows read, one after the other. */
interface LeafRange extends LeafPart {
  readonly endDepth: number;
  readonly from: number;
  readonly to: number;
}

export class ItemWriter {
  readonly #writer: PlanWriter;
  readonly #rowsPerTile: number;

  constructor(writer: PlanWriter, rowsPerTile: number) {
    this.#writer = writer;
    this.#rowsPerTile = rowsPerTile;
  }

  addLeaves(source: PartSource, parts: PartList): void {
    const words = parts.words.memory;
    for (let at = 0; at < parts.words.length; at += partWords) {
      const first = words[at + partField.firstRow];
      const end = words[at + partField.endRow];
      const depth = words[at + partField.depth];
      const endDepth = words[at + partField.endDepth];
      this.#writer.beginItem();
      for (let i = first; i < end; i++) this.#writer.addRow(source.order.rows[i]);
      if (endDepth >= 0) {
        const [from, to] = [words[at + partField.firstToken], words[at + partField.endToken]];
        this.#addRange(source, { first, end, depth, endDepth, from, to });
      } else this.#addWhole(source, { first, end, depth });
      this.#writer.endItem("small", words[at + partField.loads]);
    }
  }

  addHubs({ batch, stretches, order }: PartSource, packs: HubPacks, parts: PartList, kind: ItemKind): void {
    const words = parts.words.memory;
    for (let at = 0; at < parts.words.length; at += partWords) {
      const first = words[at + partField.firstRow];
      const end = words[at + partField.endRow];
      const pack = words[at + partField.pack];
      const [from, to] = [words[at + partField.firstToken], words[at + partField.endToken]];
      this.#writer.beginItem();
      for (let i = first; i < end; i++) this.#writer.addRow(packs.rows[i]);
      for (let start = 0, k = packs.firstStretch[pack]; k < packs.firstStretch[pack + 1]; k++) {
        const stretch = packs.stretches[k];
        const begin = Math.max(0, from - start);
        const stop = Math.min(stretches.room[stretch], to - start);
        start += stretches.room[stretch];
        if (Math.min(stop, stretches.tokens[stretch]) <= begin) continue;
        for (let i = first; i < end; i++) {
          this.#writer.addOffset(stretches.offsets[readerOf(order, packs.rows[i], stretch)]);
        }
        const rowCount = end - first;
        const row = packs.rows[first];
        this.#writer.addStretch(batch, stretches, { stretch, from: begin, to: stop, firstRow: 0, rowCount, row });
      }
      this.#writer.endItem(kind, words[at + partField.loads]);
    }
  }

  #addRange(source: PartSource, { first, end, depth, endDepth, from, to }: LeafRange): void {
    const { order, stretches } = source;
    const stretchesBefore = order.starts[order.rows[first]];
    for (let start = 0, d = depth; d < endDepth && start < to; d++) {
      const stretch = order.stretches[stretchesBefore + d];
      const room = stretches.room[stretch];
      const begin = Math.max(0, from - start);
      const stop = Math.min(room, to - start);
      if (begin < Math.min(stop, stretches.tokens[stretch])) {
        this.#addOffsets(source, first, end, d);
        const rowCount = end - first;
        const row = order.rows[first];
        this.#writer.addStretch(source.batch, stretches, {
          stretch,
          from: begin,
          to: stop,
          firstRow: 0,
          rowCount,
          row,
        });
      }
      start += room;
    }
  }

  /** Adds all that the rows read: what they share, then what rows of one m-tile share, down to each row's own. */
  #addWhole(source: PartSource, { first, end, depth }: LeafPart): void {
    const { starts, rows, sharedDepth } = source.order;
    let shared = starts[rows[first] + 1] - starts[rows[first]];
    for (let i = first + 1; i < end; i++) shared = Math.min(shared, sharedDepth[i]);
    for (let d = depth; d < shared; d++) this.#addWholeStretch(source, first, first, end, d);
    this.#writer.endShared();
    let deepest = 0;
    for (let i = first; i < end; i++) deepest = Math.max(deepest, starts[rows[i] + 1] - starts[rows[i]]);
    // Depth by depth: slices that follow each other are of different rows, so q is rotated for all of them at once.
    for (let d = shared; d < deepest; d++) {
      for (let i = first, next = first; i < end; i = next) {
        next = i + 1;
        if (d >= starts[rows[i] + 1] - starts[rows[i]]) continue;
        const tileEnd = Math.min(end, i - ((i - first) % this.#rowsPerTile) + this.#rowsPerTile);
        while (next < tileEnd && sharedDepth[next] > d) next += 1;
        this.#addWholeStretch(source, first, i, next, d);
      }
    }
  }

  /** For rows `from` to `to` of the order, in the item that begins with `first`. */
  #addWholeStretch(source: PartSource, first: number, from: number, to: number, depth: number): void {
    const { batch, stretches, order } = source;
    const row = order.rows[from];
    const stretch = order.stretches[order.starts[row] + depth];
    this.#addOffsets(source, from, to, depth);
    const firstRow = from - first;
    const rowCount = to - from;
    const end = stretches.room[stretch];
    this.#writer.addStretch(batch, stretches, { stretch, from: 0, to: end, firstRow, rowCount, row });
  }

  #addOffsets({ stretches, order }: PartSource, from: number, to: number, depth: number): void {
    const { starts, rows, readers } = order;
    for (let i = from; i < to; i++) this.#writer.addOffset(stretches.offsets[readers[starts[rows[i]] + depth]]);
  }
}
