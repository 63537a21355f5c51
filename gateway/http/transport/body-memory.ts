/**
 * Limits the bytes of request bodies that are in memory, of all tenants together. Bytes that have arrived count against
 * the server's limit. Bytes that a tenant's bodies announce count against the tenant's, so that no body is begun that
 * could not be finished.
 */
import { ApiError } from "../../base/errors.ts";

export interface BodyMemoryLimits {
  /** Most bytes of all bodies together, those within tenants' reserves not counted. */
  readonly totalBytes: number;
  /** Most bytes of one tenant's bodies beyond its reserve. */
  readonly tenantBytes: number;
  /** Bytes that each tenant may have even when others have filled the rest. */
  readonly reserveBytes: number;
  /** Most bodies of one tenant that are read at the same time. */
  readonly tenantBodies: number;
}

interface TenantShare {
  bodies: number;
  /** For each body the larger of the announced and the arrived bytes, summed. */
  claimed: number;
  /** Bytes that have arrived. */
  arrived: number;
}

export class BodyMemory {
  readonly #limits: BodyMemoryLimits;
  readonly #tenants = new Map<string, TenantShare>();
  /** Bytes that came beyond the reserves of their tenants. */
  #shared = 0;

  constructor(limits: BodyMemoryLimits) {
    this.#limits = limits;
  }

  /** Bytes of all bodies that are in memory. */
  get heldBytes(): number {
    let bytes = 0;
    for (const { arrived } of this.#tenants.values()) bytes += arrived;
    return bytes;
  }

  /**
   * Takes a place for a body before its first byte is read.
   * @param announcedBytes its content-length; 0 when there is none
   * @throws ApiError concurrency_limited, overloaded
   */
  open(tenantId: string, announcedBytes: number): HeldBody {
    const share = this.#tenants.get(tenantId) ?? { bodies: 0, claimed: 0, arrived: 0 };
    const { tenantBodies, totalBytes } = this.#limits;
    if (share.bodies >= tenantBodies) {
      throw new ApiError("concurrency_limited", {
        message: `At most ${tenantBodies} request bodies of a tenant are read at the same time.`,
      });
    }
    this.#requireClaim(share, announcedBytes);
    if (announcedBytes > this.#reserveLeft(share) + totalBytes - this.#shared) throw new ApiError("overloaded");
    share.bodies += 1;
    this.#tenants.set(tenantId, share);
    const held = { announcedBytes: 0, arrivedBytes: 0, open: true };
    this.#claim(share, held, announcedBytes);
    return {
      take: (bytes) => {
        if (!held.open) return;
        const arrived = held.arrivedBytes + bytes;
        this.#requireClaim(share, Math.max(0, arrived - held.announcedBytes));
        if (this.#sharedBy(share.arrived + bytes) - this.#sharedBy(share.arrived) + this.#shared > totalBytes) {
          throw new ApiError("overloaded");
        }
        if (arrived > held.announcedBytes) this.#claim(share, held, arrived);
        held.arrivedBytes = arrived;
        this.#arrive(share, bytes);
      },
      release: () => {
        if (!held.open) return;
        held.open = false;
        this.#arrive(share, -held.arrivedBytes);
        this.#claim(share, held, 0);
        share.bodies -= 1;
        if (share.bodies === 0) this.#tenants.delete(tenantId);
      },
    };
  }

  #claim(share: TenantShare, held: { announcedBytes: number }, bytes: number): void {
    share.claimed += bytes - held.announcedBytes;
    held.announcedBytes = bytes;
  }

  #arrive(share: TenantShare, bytes: number): void {
    this.#shared -= this.#sharedBy(share.arrived);
    share.arrived += bytes;
    this.#shared += this.#sharedBy(share.arrived);
  }

  #requireClaim({ claimed }: TenantShare, moreBytes: number): void {
    const { tenantBytes, reserveBytes } = this.#limits;
    if (claimed + moreBytes <= tenantBytes + reserveBytes) return;
    throw new ApiError("concurrency_limited", {
      message: `The tenant's request bodies that are being read may have ${tenantBytes + reserveBytes} bytes together.`,
    });
  }

  #reserveLeft({ arrived }: TenantShare): number {
    return Math.max(0, this.#limits.reserveBytes - arrived);
  }

  /** How many of a tenant's bytes are beyond its reserve. */
  #sharedBy(arrivedBytes: number): number {
    return Math.max(0, arrivedBytes - this.#limits.reserveBytes);
  }
}

export interface HeldBody {
  /** So many bytes more have come. @throws ApiError concurrency_limited, overloaded */
  take(bytes: number): void;
  /** Gives the body's bytes and place back; safe to call twice. */
  release(): void;
}
