/**
 * A cache for all tenants under one bound. When it is full, the tenant with the most entries loses its least recently
 * used ones. So a tenant with few entries loses nothing to one with many, and no tenant finds another's entries.
 */

/**
 * The part of the bound that is freed at once, so that not every insertion has to look for the tenant with the most.
 */
const freedPart = 1 / 64;

interface Entry<Value> {
  readonly value: Value;
  readonly size: number;
}

interface Share<Value> {
  /** The least recently used entry comes first. */
  readonly entries: Map<string, Entry<Value>>;
  size: number;
}

export interface TenantLruOptions<Value> {
  /** The bound on the size of all entries together. */
  readonly maxSize: number;
  /** Called for an entry that was dropped because the cache was full. */
  readonly onForget?: (tenantId: string, value: Value) => void;
}

export class TenantLru<Value> {
  readonly #options: TenantLruOptions<Value>;
  readonly #shares = new Map<string, Share<Value>>();
  #size = 0;

  constructor(options: TenantLruOptions<Value>) {
    this.#options = options;
  }

  /** Adds an entry. @param size an entry larger than the bound is dropped at once */
  set(tenantId: string, name: string, value: Value, size = 1): void {
    const share = this.#shares.getOrInsertComputed(tenantId, () => ({ entries: new Map(), size: 0 }));
    this.#delete(share, name);
    share.entries.set(name, { value, size });
    share.size += size;
    this.#size += size;
    if (this.#size > this.#options.maxSize) this.#forget();
  }

  /** Reads an entry without counting it as a use. */
  peek(tenantId: string, name: string): Value | undefined {
    return this.#shares.get(tenantId)?.entries.get(name)?.value;
  }

  /** Reads an entry and counts that as a use. */
  get(tenantId: string, name: string): Value | undefined {
    const share = this.#shares.get(tenantId);
    const entry = share?.entries.get(name);
    if (share === undefined || entry === undefined) return undefined;
    share.entries.delete(name);
    share.entries.set(name, entry);
    return entry.value;
  }

  #delete(share: Share<Value>, name: string): Entry<Value> | undefined {
    const entry = share.entries.get(name);
    if (entry === undefined) return undefined;
    share.entries.delete(name);
    share.size -= entry.size;
    this.#size -= entry.size;
    return entry;
  }

  #forget(): void {
    const { maxSize, onForget } = this.#options;
    const enough = maxSize - Math.floor(maxSize * freedPart);
    const shares = [...this.#shares].sort(([, a], [, b]) => b.size - a.size);
    const level = levelOf(
      shares.map(([, { size }]) => size),
      enough,
    );
    for (const [tenantId, share] of shares) {
      for (const name of share.entries.keys()) {
        if (this.#size <= enough || share.size <= level) break;
        const entry = this.#delete(share, name);
        if (entry !== undefined) onForget?.(tenantId, entry.value);
      }
      if (share.entries.size === 0) this.#shares.delete(tenantId);
      if (this.#size <= enough) return;
    }
  }
}

/** The size to which all tenants are cut so that together they have at most `most`. @param sizes the largest first */
function levelOf(sizes: readonly number[], most: number): number {
  let left = most;
  for (let at = sizes.length - 1; at >= 0; at--) {
    const size = sizes[at] ?? 0;
    const level = Math.floor(left / (at + 1));
    if (size > level) return level;
    left -= size;
  }
  return most;
}
