/** The audit log says who changed what, and when. It holds ids and routes, never names, text, keys or salts. */
import { type AuditEventRow, findAuditEvent, insertAuditEvent, listAuditEvents } from "../../db/audit.ts";
import { newId, parseId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Page, PageRange } from "../../db/page.ts";
import { ApiError } from "../base/errors.ts";
import { type Principal, platformReaders } from "./principal.ts";

export interface AuditedAction {
  readonly requestId: string;
  readonly principal: Principal;
  /** Method and route, such as "DELETE /v1/files/{file_id}". */
  readonly action: string;
  /** The ids that the path names. The id of a new object is stored under the name `id`. */
  readonly objectIds: Readonly<Record<string, string>>;
}

/**
 * Events that are kept of the platform and of each tenant. Beyond that the actor's own oldest events are removed, so no
 * tenant's activity removes another's events.
 */
const mostEvents = { platform: 1_000_000, tenant: 100_000 } as const;

export class AuditLog {
  readonly #db: Db;

  constructor(db: Db) {
    this.#db = db;
  }

  /**
   * Makes a change and records its event in the same transaction.
   * @param change must be synchronous
   * @param made returns the ids that are known only after the change
   */
  withEvent<Result>(
    event: AuditedAction,
    change: () => Result,
    made: (result: Result) => Readonly<Record<string, string>>,
  ): Result {
    let result: { readonly value: Result } | undefined;
    const make = (): void =>
      this.#db.transaction("withEvent", () => {
        const value = change();
        this.#record({ ...event, objectIds: { ...event.objectIds, ...made(value) } });
        result = { value };
      });
    if (/^(DELETE|PATCH) /.test(event.action)) this.#db.removing(make);
    else make();
    if (result === undefined) throw new Error("a transaction ended without its work");
    return result.value;
  }

  #record({ requestId, principal, action, objectIds }: AuditedAction): void {
    const { keyId, tenantId: actorTenantId = null } = principal;
    const tenantId = objectIds.tenant_id ?? (action === "POST /admin/v1/tenants" ? objectIds.id : undefined);
    const who = { requestId, keyId, actorTenantId, tenantId: tenantId ?? actorTenantId };
    const maxEvents = mostEvents[actorTenantId === null ? "platform" : "tenant"];
    insertAuditEvent(this.#db, { id: newId("auditEvent"), at: Date.now(), ...who, action, objectIds }, maxEvents);
  }

  /**
   * The events that the caller may see: all of them with platform:admin or platform:read, otherwise those that its
   * tenant caused or was affected by.
   */
  list(caller: Principal, range: PageRange): Page<AuditEventRow> {
    return listAuditEvents(this.#db, visibleTenant(caller), range);
  }

  /** @throws ApiError not_found */
  get(caller: Principal, rawId: string): AuditEventRow {
    const id = parseId("auditEvent", rawId);
    const row = id === undefined ? undefined : findAuditEvent(this.#db, id, visibleTenant(caller));
    if (row === undefined) throw new ApiError("not_found");
    return row;
  }
}

/** The tenant whose events the caller may see; undefined: every tenant's. @throws ApiError no_tenant */
export function visibleTenant({ scopes, tenantId }: Principal): string | undefined {
  if (platformReaders.some((scope) => scopes.has(scope))) return undefined;
  if (tenantId === undefined) throw new ApiError("no_tenant");
  return tenantId;
}
