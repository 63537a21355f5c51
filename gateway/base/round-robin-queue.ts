/** A queue that serves one item of each tenant in a round, however many items the tenants have waiting. */
export class RoundRobinQueue<Item> {
  /** Waiting items by tenant, ordered by which tenant is served next. No list is empty. */
  readonly #lines = new Map<string, Item[]>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  sizeOf(tenantId: string): number {
    return this.#lines.get(tenantId)?.length ?? 0;
  }

  push(tenantId: string, item: Item): void {
    this.#lines.getOrInsertComputed(tenantId, () => []).push(item);
    this.#size += 1;
  }

  /** Takes out the next item of the first tenant that may be served now. undefined: no such tenant. */
  take(mayHave: (tenantId: string) => boolean): Item | undefined {
    for (const [tenantId, line] of this.#lines) {
      if (!mayHave(tenantId)) continue;
      const item = line.shift();
      // The tenant is served again after all others.
      this.#lines.delete(tenantId);
      if (line.length > 0) this.#lines.set(tenantId, line);
      this.#size -= 1;
      return item;
    }
    return undefined;
  }

  /** Removes an item. @returns whether it was still waiting */
  remove(tenantId: string, item: Item): boolean {
    const line = this.#lines.get(tenantId);
    const index = line?.indexOf(item) ?? -1;
    if (line === undefined || index < 0) return false;
    line.splice(index, 1);
    if (line.length === 0) this.#lines.delete(tenantId);
    this.#size -= 1;
    return true;
  }

  /** Empties the queue. @returns the items that were waiting */
  drain(): readonly Item[] {
    const items = [...this.#lines.values()].flat();
    this.#lines.clear();
    this.#size = 0;
    return items;
  }
}
