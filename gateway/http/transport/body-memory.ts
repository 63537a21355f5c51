/**
 * Bytes of bodies that are in memory, of all tenants together. What has arrived counts against the server's part; what a
 * tenant's bodies say they will be counts against the tenant's, so that none of them is taken that cannot be finished.
 */
import { ApiError } from "../../base/errors.ts";

export interface BodyMemoryLimits {
  /** Of all bodies that are beyond their tenants' reserves. */
  readonly totalBytes: number;
  /** Of one tenant's bodies beyond its reserve. */
  readonly tenantBytes: number;
  /** Of each tenant, also when others have taken all there is. */
  readonly reserveBytes: number;
  /** Bodies of one tenant that are read at the same time. */
  readonly tenantBodies: number;
}

interface TenantShare {
  bodies: number;
  /** The larger of what was announced and what came, summed over its bodies. */
  claimed: number;
  /** What came. */
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
   * A place for a body, before its first byte is read.
   * @param announcedBytes by its head; 0 when that does not say
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

  /** Of so many bytes of one tenant, those beyond its reserve. */
  #sharedBy(arrivedBytes: number): number {
    return Math.max(0, arrivedBytes - this.#limits.reserveBytes);
  }
}

export interface HeldBody {
  /** So many bytes more have come. @throws ApiError concurrency_limited, overloaded */
  take(bytes: number): void;
  /** The body is in memory no more; safe to call twice. */
  release(): void;
}
