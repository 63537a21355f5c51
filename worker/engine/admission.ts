/**
 * Whether there are blocks for a request. Blocks that other tenants hold up to their floors (cache/shares.ts) count as
 * taken as long as another request of the same tenant runs, because that request's blocks come free. A tenant's only
 * request gets whatever there is. Everywhere `running` is the scheduler's list, in order of admission.
 */
import type { BlockPool } from "../cache/block-pool.ts";
import type { Request } from "./request.ts";

/** "floors": there would be enough blocks if other tenants had no floors. */
export type Refusal = "full" | "floors";

/** Blocks promised to running requests and not taken yet. */
export function reservedBlocks(running: readonly Request[]): number {
  return running.reduce((sum, request) => sum + request.reservedBlocks, 0);
}

/** Blocks that any of the running requests can take: promised to nobody, and below nobody else's floor. */
export function openBlocks(pool: BlockPool, running: readonly Request[]): number {
  const owner = running[0]?.owner.number;
  const isOne = running.every((request) => request.owner.number === owner);
  return pool.availableCount - reservedBlocks(running) - pool.shares.protectedFrom(isOne ? owner : undefined);
}

/** @returns why `request` cannot have so many blocks; undefined when it can */
export function refusalOf(
  pool: BlockPool,
  running: readonly Request[],
  request: Request,
  blockCount: number,
): Refusal | undefined {
  const unreserved = pool.availableCount - reservedBlocks(running);
  if (unreserved < blockCount) return "full";
  if (unreserved - pool.shares.mostProtected >= blockCount) return undefined;
  const owner = request.owner.number;
  if (!running.some((other) => other !== request && other.owner.number === owner)) return undefined;
  return unreserved - pool.shares.protectedFrom(owner) < blockCount ? "floors" : undefined;
}

/** The request that makes room for `request`: the last one admitted, of its own tenant where floors are in the way. */
export function victimFor(running: readonly Request[], request: Request, refusal: Refusal): Request {
  const isVictim = ({ owner }: Request): boolean => refusal === "full" || owner.number === request.owner.number;
  return running.findLast(isVictim) ?? request;
}
