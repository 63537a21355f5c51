/** Tables of many tenants name them. */
import { get } from "../kit/api.ts";
import { useResource } from "../kit/resource.ts";
import { may, session } from "../kit/session.ts";
import type { Tenant } from "./tenant.tsx";

type TenantName = Pick<Tenant, "id" | "name">;

async function namesInView(signal: AbortSignal): Promise<readonly TenantName[]> {
  const own = session.value?.tenant_id ?? undefined;
  if (own !== undefined && may("tenant:admin")) {
    return [await get<TenantName>(`/admin/v1/tenants/${encodeURIComponent(own)}`, {}, signal)];
  }
  if (!may("platform:admin")) return [];
  return (await get<{ readonly data: readonly TenantName[] }>("/admin/v1/tenants", { limit: 100 }, signal)).data;
}

/**
 * Gives a tenant's name. Who only reads the platform has no list of tenants, and of more than a hundred only the first
 * page is asked for: for others their ids stand.
 */
export function useTenantNames(): (id: string) => string {
  const names = useResource(namesInView, []);
  const known = new Map(names.data?.map(({ id, name }) => [id, name]));
  return (id) => known.get(id) ?? id;
}
