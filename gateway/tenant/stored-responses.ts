/**
 * Stores answers, which their tenant can read again. The newest ones are kept, for a limited time. Old ones are removed
 * in pieces, in the background.
 */
import { newId, parseId, type ResponseId, type TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import {
  deleteResponse,
  findResponse,
  insertResponse,
  type NewResponse,
  type ResponseHead,
  type Retention,
  readResponse,
  retireOldResponses,
  sweepResponses,
} from "../../db/responses.ts";
import { removeSweptTenants } from "../../db/tenants.ts";
import { BackgroundLoop } from "../background/background-loop.ts";
import { ApiError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { yieldToRequests } from "../base/pace.ts";
import type { TenantStorage } from "./storage.ts";

export interface StoredResponsesOptions {
  /** How many answers of one tenant are kept, and how many bytes of them. */
  readonly retention: Retention;
  readonly keepMs: number;
  readonly nowMs: () => number;
  readonly log: Log;
  readonly storage: Pick<TenantStorage, "reserve">;
}

/** An estimate of the bytes that an answer takes. */
const answerBytes = 16 * 1024;
const sweptBytesAtOnce = 1024 * 1024;
const retiredAtOnce = 64;
/** How often, in milliseconds, expired answers are looked for when nothing else wakes the loop. */
const ageCheckMs = 600_000;

export class StoredResponses {
  readonly #db: Db;
  readonly #options: StoredResponsesOptions;
  readonly #loop: BackgroundLoop;
  readonly #timer: ReturnType<typeof setInterval>;

  constructor(db: Db, options: StoredResponsesOptions) {
    this.#db = db;
    this.#options = options;
    this.#loop = new BackgroundLoop("the sweep of responses", options.log, (signal) =>
      this.#sweep(signal).catch((error: unknown) => {
        db.relieve(error);
        throw error;
      }),
    );
    this.#timer = setInterval(() => this.wake(), ageCheckMs);
    this.#timer.unref();
  }

  /** Call when responses may have been deleted, for instance with their tenant. */
  wake(): void {
    this.#loop.wake();
  }

  /** Resolves when no deleted response is left. */
  idle(): Promise<void> {
    return this.#loop.idle();
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.#loop.stop();
  }

  newId(): ResponseId {
    return newId("response");
  }

  /**
   * Reserves storage for a response that is about to be made. Call the returned function when the response is stored,
   * or will not be.
   * @param bytes the part of its size that is known already
   */
  reserve(tenantId: TenantId, bytes: number): () => void {
    return this.#options.storage.reserve(tenantId, bytes + answerBytes, "small");
  }

  /** Stores a response. It does nothing if the tenant was deleted while the answer was made. */
  add(tenantId: TenantId, row: Omit<NewResponse, "tenantId" | "createdAt">): void {
    const fields = { ...row, tenantId: tenantId, createdAt: this.#options.nowMs() };
    insertResponse(this.#db, fields, this.#options.retention);
    this.wake();
  }

  /** @throws ApiError not_found, also for another tenant's response */
  get(tenantId: TenantId, rawId: string): ResponseHead {
    return found(this.#find(tenantId, rawId, { since: this.#options.nowMs() - this.#options.keepMs }));
  }

  /**
   * A response that another response goes on from. It may be older than those that are kept for reading. undefined: it
   * was deleted.
   */
  earlier(tenantId: TenantId, rawId: string): ResponseHead | undefined {
    return this.#find(tenantId, rawId, false);
  }

  /** The stored JSON. @throws ApiError not_found when it was deleted a moment ago */
  read({ seq }: ResponseHead, part: "body" | "inputItems"): string {
    return found(readResponse(this.#db, seq, part));
  }

  /** @throws ApiError not_found */
  delete(tenantId: TenantId, rawId: string): void {
    const id = parseId("response", rawId);
    if (id === undefined || !deleteResponse(this.#db, tenantId, id)) throw new ApiError("not_found");
    this.wake();
  }

  #find(tenantId: TenantId, rawId: string, isEntry: Parameters<typeof findResponse>[3]): ResponseHead | undefined {
    const id = parseId("response", rawId);
    return id === undefined ? undefined : findResponse(this.#db, tenantId, id, isEntry);
  }

  async #sweep(signal: AbortSignal): Promise<void> {
    const { nowMs, keepMs } = this.#options;
    while (!signal.aborted && retireOldResponses(this.#db, nowMs() - keepMs, retiredAtOnce) > 0)
      await yieldToRequests();
    while (!signal.aborted && sweepResponses(this.#db, sweptBytesAtOnce)) await yieldToRequests();
    if (!signal.aborted) removeSweptTenants(this.#db);
  }
}

function found<Value>(value: Value | undefined): Value {
  if (value === undefined) throw new ApiError("not_found");
  return value;
}
