/** Pages about one tenant: an operator's has the tenant in its address, everybody else sees the own one. */
import type { ComponentChildren } from "preact";
import { Form, TextField, textOf } from "../kit/form.tsx";
import { Name } from "../kit/name.tsx";
import { Loaded, Panel } from "../kit/parts.tsx";
import { useGet } from "../kit/resource.ts";
import { goTo, linkTo, route } from "../kit/router.ts";
import { session } from "../kit/session.ts";

export interface Tenant {
  readonly id: string;
  readonly name: string;
  readonly status: "active" | "disabled";
  readonly created_at: number;
}

/** The tenant that the address names, else the own one; undefined: an operator has named none. */
export const tenantInView = (): string | undefined => route.value.rest[0] ?? session.value?.tenant_id ?? undefined;

interface OfTenantProps {
  /** The page's name in the address. */
  readonly page: string;
  readonly children: (tenant: Tenant) => ComponentChildren;
}

export function OfTenant({ page, children }: OfTenantProps) {
  const id = tenantInView();
  return id === undefined ? <ChooseTenant page={page} /> : <KnownTenant key={id} id={id} children={children} />;
}

function KnownTenant({ id, children }: { readonly id: string } & Pick<OfTenantProps, "children">) {
  const tenant = useGet<Tenant>(`/admin/v1/tenants/${encodeURIComponent(id)}`);
  return (
    <Loaded resource={tenant}>
      {(found) => (
        <>
          <p class="tenant-line">
            Tenant{" "}
            <strong>
              <Name text={found.name} />
            </strong>{" "}
            <code>{found.id}</code>
            {session.value?.tenant_id === null && <a href={linkTo("tenants")}>another one</a>}
          </p>
          {children(found)}
        </>
      )}
    </Loaded>
  );
}

const ChooseTenant = ({ page }: { readonly page: string }) => (
  <Panel title="Which tenant?">
    <p>
      Choose one in <a href={linkTo("tenants")}>Tenants</a>, or type its id.
    </p>
    <Form submit="Show" onSubmit={async (values) => goTo(linkTo(page, [textOf(values, "tenant_id")]))}>
      <TextField name="tenant_id" label="Tenant's id" placeholder="tenant_…" />
    </Form>
  </Panel>
);
