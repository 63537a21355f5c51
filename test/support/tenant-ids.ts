/** Tenants' ids as tests get them: from answers of the server, where they are plain strings. */
import { parseId, type TenantId } from "../../db/ids.ts";

export function requireTenantId(raw: unknown): TenantId {
  const id = parseId("tenant", String(raw));
  if (id === undefined) throw new Error(`not the id of a tenant: ${raw}`);
  return id;
}
