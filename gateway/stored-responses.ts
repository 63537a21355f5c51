/** Answers that their tenant can ask for again: the newest ones, for a time. */
import { newId, parseId, type ResponseId, type TenantId } from "../db/ids.ts";
import type { Db } from "../db/open.ts";
import { deleteResponse, findResponse, insertResponse, type ResponseRow } from "../db/responses.ts";
import type { JsonObject } from "../db/schema.ts";
import { ApiError } from "./errors.ts";

export interface StoredResponsesOptions {
  readonly perTenant: number;
  readonly keepMs: number;
  readonly nowMs: () => number;
}

export class StoredResponses {
  readonly #db: Db;
  readonly #options: StoredResponsesOptions;

  constructor(db: Db, options: StoredResponsesOptions) {
    this.#db = db;
    this.#options = options;
  }

  newId(): ResponseId {
    return newId("response");
  }

  /** Nothing happens when the tenant was deleted while its answer was made. */
  add(
    tenantId: string,
    row: { readonly id: ResponseId; readonly body: JsonObject; readonly inputItems: JsonObject[] },
  ) {
    const createdAt = this.#options.nowMs();
    const retention = { perTenant: this.#options.perTenant, since: this.#since() };
    insertResponse(this.#db, { ...row, tenantId: tenantId as TenantId, createdAt }, retention);
  }

  /** @throws ApiError not_found, for another tenant's as for one that never was */
  get(tenantId: string, rawId: string): ResponseRow {
    const id = parseId("response", rawId);
    const row = id === undefined ? undefined : findResponse(this.#db, tenantId as TenantId, id, this.#since());
    if (row === undefined) throw new ApiError("not_found");
    return row;
  }

  /** @throws ApiError not_found */
  delete(tenantId: string, rawId: string): void {
    const { id } = this.get(tenantId, rawId);
    deleteResponse(this.#db, tenantId as TenantId, id);
  }

  #since(): number {
    return this.#options.nowMs() - this.#options.keepMs;
  }
}
