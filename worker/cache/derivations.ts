/**
 * Which resident blocks were computed from what: a block's KV holds something of every span that its tokens attended
 * to, so it goes when one of those is evicted. Sources are remembered as long as the block is there, whether or not they
 * are resident themselves.
 */
import type { BlockKey } from "../contract/units.ts";

/** Blocks with the same sources: those that one run stored. */
export class Derivation {
  /** Last keys of the runs that it was computed from, at first and at second hand. */
  readonly sources: readonly BlockKey[];
  readonly blockKeys = new Set<BlockKey>();

  constructor(sources: readonly BlockKey[]) {
    this.sources = sources;
  }
}

export class Derivations {
  private readonly ofBlock = new Map<BlockKey, Derivation>();
  private readonly bySource = new Map<BlockKey, Set<Derivation>>();

  /** A block was stored. */
  add(key: BlockKey, derivation: Derivation): void {
    const { sources, blockKeys } = derivation;
    if (sources.length === 0) return;
    if (blockKeys.size === 0) for (const source of sources) this.link(source, derivation);
    blockKeys.add(key);
    this.ofBlock.set(key, derivation);
  }

  /** The block is not resident any more. */
  remove(key: BlockKey): void {
    const derivation = this.ofBlock.get(key);
    if (derivation === undefined) return;
    this.ofBlock.delete(key);
    derivation.blockKeys.delete(key);
    if (derivation.blockKeys.size === 0) for (const source of derivation.sources) this.unlink(source, derivation);
  }

  /** Resident blocks that were computed from what the key stands for. */
  from(source: BlockKey): BlockKey[] {
    return [...(this.bySource.get(source) ?? [])].flatMap(({ blockKeys }) => [...blockKeys]);
  }

  /** Sources that are remembered, for checks. */
  get sourceCount(): number {
    return this.bySource.size;
  }

  private link(source: BlockKey, derivation: Derivation): void {
    const derivations = this.bySource.get(source);
    if (derivations === undefined) this.bySource.set(source, new Set([derivation]));
    else derivations.add(derivation);
  }

  private unlink(source: BlockKey, derivation: Derivation): void {
    const derivations = this.bySource.get(source);
    derivations?.delete(derivation);
    if (derivations?.size === 0) this.bySource.delete(source);
  }
}
