/**
 * Which resident blocks were computed from what: a block's KV holds something of every span that its tokens attended
 * to, so it goes when one of those is evicted. Sources are remembered as long as the block is there, whether or not
 * they are resident themselves.
 */
import type { BlockKey } from "../contract/units.ts";

/** Blocks with the same sources, which one run stored. */
export class Derivation {
  /**
   * Last keys of the runs that the blocks were computed from, directly or through other runs, and the root keys of the
   * spans among these; for a span its own root key too.
   */
  readonly sources: readonly BlockKey[];
  readonly blockKeys = new Set<BlockKey>();

  constructor(sources: readonly BlockKey[]) {
    this.sources = sources;
  }
}

/** Derivations of blocks that are copied to another cache: a derivation knows the blocks of one cache. */
export class DerivationTwins {
  readonly #twins = new WeakMap<Derivation, Derivation>();

  of(derivation: Derivation | undefined): Derivation | undefined {
    if (derivation === undefined) return undefined;
    const twin = this.#twins.get(derivation) ?? new Derivation(derivation.sources);
    this.#twins.set(derivation, twin);
    return twin;
  }
}

export class Derivations {
  readonly #ofBlock = new Map<BlockKey, Derivation>();
  readonly #bySource = new Map<BlockKey, Set<Derivation>>();
  /** Derivations from one source, by that source: all spans of a corpus have one root key and share one derivation. */
  readonly #ofOne = new Map<BlockKey, Derivation>();

  /** A block was stored. */
  add(key: BlockKey, derivation: Derivation): void {
    if (derivation.sources.length === 0) return;
    const shared = this.#shared(derivation);
    if (shared.blockKeys.size === 0) {
      for (const source of shared.sources) this.#bySource.getOrInsertComputed(source, () => new Set()).add(shared);
    }
    shared.blockKeys.add(key);
    this.#ofBlock.set(key, shared);
  }

  /** The block is not resident any more. */
  remove(key: BlockKey): void {
    const derivation = this.#ofBlock.get(key);
    if (derivation === undefined) return;
    this.#ofBlock.delete(key);
    derivation.blockKeys.delete(key);
    if (derivation.blockKeys.size > 0) return;
    for (const source of derivation.sources) this.#unlink(source, derivation);
    if (derivation.sources.length === 1) this.#ofOne.delete(derivation.sources[0]);
  }

  /** What a resident block was computed from; undefined: from nothing but its own chain. */
  of(key: BlockKey): Derivation | undefined {
    return this.#ofBlock.get(key);
  }

  /** Resident blocks that were computed from what the key stands for, or are of spans that begin with it. */
  from(source: BlockKey): BlockKey[] {
    return [...(this.#bySource.get(source) ?? [])].flatMap(({ blockKeys }) => [...blockKeys]);
  }

  /** How many different derivations are remembered, for checks. */
  get count(): number {
    return new Set(this.#ofBlock.values()).size;
  }

  /** How many sources are remembered, for checks. */
  get sourceCount(): number {
    return this.#bySource.size;
  }

  #shared(derivation: Derivation): Derivation {
    if (derivation.sources.length > 1) return derivation;
    const [source] = derivation.sources;
    return this.#ofOne.getOrInsert(source, derivation);
  }

  #unlink(source: BlockKey, derivation: Derivation): void {
    const derivations = this.#bySource.get(source);
    derivations?.delete(derivation);
    if (derivations?.size === 0) this.#bySource.delete(source);
  }
}
