/**
 * Whether there are blocks for a request. What others hold up to their floors (cache/shares.ts) is none of them as long
 * as another request of the same tenant runs, whose blocks come free; the only one of its tenant gets whatever there is.
 */
import type { BlockPool } from "../cache/block-pool.ts";
import type { Request } from "./request.ts";

export class Admission {
  private readonly pool: BlockPool;
  private readonly running: readonly Request[];

  /** @param running in order of admission */
  constructor(pool: BlockPool, running: readonly Request[]) {
    this.pool = pool;
    this.running = running;
  }

  /** Blocks promised to running requests and not taken yet. */
  get reservedBlocks(): number {
    return this.running.reduce((sum, request) => sum + request.reservedBlocks, 0);
  }

  /** Blocks that can be taken and are promised to nobody. */
  get unreservedBlocks(): number {
    return this.pool.availableCount - this.reservedBlocks;
  }

  /** The same without what others hold up to their floors: so many can be taken by any of those who run. */
  get openBlocks(): number {
    const owner = this.running[0]?.owner.number;
    const isOne = this.running.every((request) => request.owner.number === owner);
    return this.unreservedBlocks - this.pool.shares.protectedFrom(isOne ? owner : undefined);
  }

  /** "floors": there would be, if others' floors were nothing. */
  refusal(request: Request, blockCount: number): "full" | "floors" | undefined {
    const { shares } = this.pool;
    const unreserved = this.unreservedBlocks;
    if (unreserved < blockCount) return "full";
    if (unreserved - shares.mostProtected >= blockCount) return undefined;
    const owner = request.owner.number;
    if (!this.running.some((other) => other !== request && other.owner.number === owner)) return undefined;
    return unreserved - shares.protectedFrom(owner) < blockCount ? "floors" : undefined;
  }

  /** Whose blocks make room for this running request: who was admitted last, of its own tenant where floors are in the way. */
  victimFor(request: Request, refusal: "full" | "floors"): Request {
    const owner = request.owner.number;
    const isVictim = ({ owner: { number } }: Request): boolean => refusal === "full" || number === owner;
    return this.running.findLast(isVictim) ?? request;
  }
}
