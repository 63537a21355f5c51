/**
 * Accounts for the bytes that tenants store: the bytes of their rows, the bytes that are being received, and their
 * limits. Space is reserved before bytes arrive and released once a row holds them, so that concurrent uploads cannot
 * exceed a limit together.
 */
import type { TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import { type StoredBytes, storedBytes } from "../../db/storage.ts";
import { ApiError } from "../base/errors.ts";
import { type Hold, holdUntil } from "../base/hold.ts";

export interface DiskRoom {
  /** Bytes that tenants may still store. Small things still find space when large ones do not any more. */
  availableBytes(): number;
  availableForSmall(): number;
}

export interface TenantStorageOptions {
  readonly disk: DiskRoom;
  /** The tenant's own limit; null: none was set. */
  readonly limitOf: (tenantId: TenantId) => number | null;
  /** The limit of each tenant without a limit of its own; undefined: the space that is left on the disk. */
  readonly defaultBytes: number | undefined;
}

export interface StorageUse {
  readonly limitBytes: number;
  readonly usedBytes: number;
  readonly stored: StoredBytes;
}

/** The size class of what is stored: small things may also use half of the disk's reserve. */
export type StoredSize = "large" | "small";

export class TenantStorage {
  readonly #db: Db;
  readonly #options: TenantStorageOptions;
  readonly #reserved = new Map<string, number>();
  #reservedBytes = 0;

  constructor(db: Db, options: TenantStorageOptions) {
    this.#db = db;
    this.#options = options;
  }

  use(tenantId: TenantId, size: StoredSize = "large"): StorageUse {
    const stored = storedBytes(this.#db, tenantId);
    const usedBytes = Object.values(stored).reduce((sum, bytes) => sum + bytes, 0);
    return { limitBytes: this.#limitOf(tenantId, usedBytes, size), usedBytes, stored };
  }

  /**
   * Reserves space for what is about to be stored. The hold has to end once a row holds the bytes, or once it is certain
   * that none will.
   * @throws ApiError quota_exceeded, storage_full
   */
  reserve(tenantId: TenantId, bytes: number, size: StoredSize = "large"): Hold {
    this.checkDisk(bytes, size);
    const own = this.#reserved.get(tenantId) ?? 0;
    const use = this.use(tenantId, size);
    if (use.usedBytes + own + bytes > use.limitBytes) throw full(use, bytes);
    this.#reserved.set(tenantId, own + bytes);
    this.#reservedBytes += bytes;
    let isHeld = true;
    return holdUntil(() => {
      if (!isHeld) return;
      isHeld = false;
      this.#reservedBytes -= bytes;
      const left = (this.#reserved.get(tenantId) ?? 0) - bytes;
      if (left > 0) this.#reserved.set(tenantId, left);
      else this.#reserved.delete(tenantId);
    });
  }

  /** Checks the disk only, for bytes that are counted already or are the server's own. @throws ApiError storage_full */
  checkDisk(bytes: number, size: StoredSize = "large"): void {
    if (bytes > this.#available(size) - this.#reservedBytes) throw new ApiError("storage_full", { retryAfterS: 30 });
  }

  #available(size: StoredSize): number {
    const { disk } = this.#options;
    return size === "large" ? disk.availableBytes() : disk.availableForSmall();
  }

  #limitOf(tenantId: TenantId, usedBytes: number, size: StoredSize): number {
    const { limitOf, defaultBytes } = this.#options;
    const set = limitOf(tenantId) ?? defaultBytes;
    if (set !== undefined) return set;
    // A tenant may store as much as it leaves free, so a tenant that fills the disk leaves half of the space to others.
    return Math.floor((usedBytes + this.#available(size)) / 2);
  }
}

const names: Readonly<Record<keyof StoredBytes, string>> = {
  files: "files",
  uploads: "uploads in parts",
  texts: "text in vector stores",
  responses: "stored responses",
  batches: "results of batches",
};

function full({ limitBytes, usedBytes, stored }: StorageUse, bytes: number): ApiError {
  const parts = (Object.keys(names) as (keyof StoredBytes)[])
    .filter((kind) => stored[kind] > 0)
    .map((kind) => `${names[kind]} ${stored[kind]}`);
  const held = parts.length === 0 ? "" : ` (${parts.join(", ")})`;
  const message = `The tenant has stored ${usedBytes} of the ${limitBytes} bytes that it may${held}, and this takes ${bytes} more: delete some of it.`;
  return new ApiError("quota_exceeded", { message });
}
