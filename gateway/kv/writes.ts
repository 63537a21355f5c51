/** Objects that workers are writing: none of them has a row yet. */
import type { TenantId } from "../../db/ids.ts";
import type { KvFormat, KvObject } from "../../worker/contract/kv-object.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import type { ScopeFacts } from "./scopes.ts";

export interface PendingObject {
  readonly object: KvObject;
  readonly workerId: string;
  readonly spanKey: BlockKey;
  readonly scopeName: string;
  readonly facts: ScopeFacts;
  readonly format: string;
  readonly modelDigest: string;
  readonly bytes: number;
  readonly blockCount: number;
}

/** A span as it was prepared. */
export interface KeptSpan {
  readonly rootKey: BlockKey;
  readonly blockKeys: readonly BlockKey[];
  readonly tokenIds: Int32Array;
}

/** How a span is to be kept. */
export interface KeepWish {
  /** Only files that were last used before this time (Unix milliseconds) make room; default: any. */
  readonly usedBefore?: number | undefined;
  /** Given, it waits in line for as long as this is true; absent: it is not kept now when the line is full. */
  readonly isWanted?: () => boolean;
}

/** What is to be written. */
export interface KeepWork {
  readonly workerId: string;
  readonly span: KeptSpan;
  readonly salt: CacheSalt;
  readonly facts: ScopeFacts;
  readonly format: KvFormat;
  readonly usedBefore: number;
}

interface Entry {
  readonly pending: PendingObject;
  readonly end: PromiseWithResolvers<void>;
}

/** Bytes of files that may be asked for and not written yet. */
const mostInLine = 256 * 1024 * 1024;

export class KvWrites {
  readonly #entries = new Map<string, Entry>();
  readonly #byLastKey = new Map<BlockKey, Entry>();
  /** Objects that were dropped, and the worker that has not said yet that it has done with each. */
  readonly #dropped = new Map<string, string>();
  readonly #mostBytes: number;
  /** Resolve when one of the writes has ended. */
  #waiting: (() => void)[] = [];
  #bytes = 0;

  constructor(mostBytes = mostInLine) {
    this.#mostBytes = mostBytes;
  }

  /** Whether so many bytes wait to be written that no further write is to be asked for. */
  get isFull(): boolean {
    return this.#bytes >= this.#mostBytes;
  }

  /** Resolves when there is room in the line. @returns false: it is not wanted any more */
  async freed(isWanted: () => boolean): Promise<boolean> {
    while (this.isFull && isWanted()) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    return isWanted();
  }

  /** Bytes of all files that are being written. */
  get bytes(): number {
    return this.#bytes;
  }

  bytesOf(tenantId: TenantId): number {
    const own = [...this.#entries.values()].filter(({ pending }) => pending.facts.tenantId === tenantId);
    return own.reduce((sum, { pending }) => sum + pending.bytes, 0);
  }

  /** The end of the write of what ends with this key; undefined: nobody writes it. */
  endOf(lastKey: BlockKey): Promise<void> | undefined {
    return this.#byLastKey.get(lastKey)?.end.promise;
  }

  /** @returns its end, whatever comes of it */
  begin(pending: PendingObject): Promise<void> {
    const entry = { pending, end: Promise.withResolvers<void>() };
    this.#entries.set(pending.object.id, entry);
    this.#byLastKey.set(pending.object.lastKey, entry);
    this.#bytes += pending.bytes;
    return entry.end.promise;
  }

  /** The worker's part is over. @returns what it was; undefined: it was dropped meanwhile */
  settle(objectId: string): PendingObject | undefined {
    this.#dropped.delete(objectId);
    const entry = this.#entries.get(objectId);
    if (entry === undefined) return undefined;
    const { pending, end } = entry;
    this.#entries.delete(objectId);
    if (this.#byLastKey.get(pending.object.lastKey) === entry) this.#byLastKey.delete(pending.object.lastKey);
    this.#bytes -= pending.bytes;
    for (const wake of this.#waiting.splice(0)) wake();
    end.resolve();
    return pending;
  }

  /** Ends the writes that are meant, before their workers do. @returns what they were */
  drop(isMeant: (pending: PendingObject) => boolean): readonly PendingObject[] {
    const meant = [...this.#entries.values()].map(({ pending }) => pending).filter(isMeant);
    for (const { object, workerId } of meant) {
      this.settle(object.id);
      this.#dropped.set(object.id, workerId);
    }
    return meant;
  }

  /** The worker is gone. @returns the objects of which it may have left files */
  lost(workerId: string): readonly string[] {
    this.drop((pending) => pending.workerId === workerId);
    const left = [...this.#dropped].flatMap(([id, itsWorker]) => (itsWorker === workerId ? [id] : []));
    for (const id of left) this.#dropped.delete(id);
    return left;
  }
}
