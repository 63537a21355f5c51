/**
 * What became resident and what went, in order, since the last `take()`. Keys only: an event carries no
 * token and no salt.
 */
import type { KvEvent } from "../contract/messages.ts";
import type { BlockKey } from "../contract/units.ts";

type Change = Exclude<KvEvent["type"], "cleared">;

export class KvEventLog {
  private nextSequence = 1;
  private pending: { type: Change; blockKeys: BlockKey[] }[] = [];

  record(type: Change, blockKey: BlockKey): void {
    const last = this.pending.at(-1);
    if (last?.type === type) last.blockKeys.push(blockKey);
    else this.pending.push({ type, blockKeys: [blockKey] });
  }

  /** Changes since the last call, neighbours of one type in one event, numbered without gaps from 1. */
  take(): KvEvent[] {
    if (this.pending.length === 0) return [];
    const events = this.pending.map((change) => ({ sequence: this.nextSequence++, ...change }));
    this.pending = [];
    return events;
  }
}
