/** What was loaded, gathered so that the gateway is told of many files at once: a message for each took as long as opening it. */
import type { KvObject } from "../contract/kv-object.ts";
import type { WorkerMessage } from "../contract/messages.ts";
import type { BlockKey } from "../contract/units.ts";

/** Files that are told of at once. */
const mostObjects = 256;

interface Report {
  readonly objectIds: string[];
  blocks: number;
  bytes: number;
}

export class LoadReports {
  readonly #emit: (message: WorkerMessage) => void;
  /** By the key that the objects' chains begin with, and so by whose they are. */
  readonly #reports = new Map<BlockKey, Report>();
  #objectCount = 0;

  constructor(emit: (message: WorkerMessage) => void) {
    this.#emit = emit;
  }

  /** So many blocks of the object, of so many bytes, were stored. */
  add({ id, rootKey }: KvObject, blocks: number, bytes: number): void {
    const report = this.#reports.getOrInsertComputed(rootKey, () => ({ objectIds: [], blocks: 0, bytes: 0 }));
    report.objectIds.push(id);
    report.blocks += blocks;
    report.bytes += bytes;
    this.#objectCount += 1;
    if (this.#objectCount >= mostObjects) this.flush();
  }

  flush(): void {
    for (const [rootKey, report] of this.#reports) this.#emit({ type: "loaded", rootKey, ...report });
    this.#reports.clear();
    this.#objectCount = 0;
  }
}
