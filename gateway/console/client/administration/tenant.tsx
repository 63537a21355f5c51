/** Pages about one tenant: an operator's has the tenant in its address, everybody else sees the own one. */
import type { ComponentChildren } from "preact";
import { Form, TextField, textOf } from "../kit/form.tsx";
import { Name } from "../kit/name.tsx";
import { Badge, Loaded, Panel } from "../kit/parts.tsx";
import { useGet, useList } from "../kit/resource.ts";
import { goTo, linkTo, route } from "../kit/router.ts";
import { session } from "../kit/session.ts";
import { ListTable } from "../kit/table.tsx";

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
  return id === undefined ? <ChooseTenant page={page} /> : <KnownTenant key={id} {...{ id, page, children }} />;
}

function KnownTenant({ id, page, children }: { readonly id: string } & OfTenantProps) {
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
            {session.value?.tenant_id === null && <a href={linkTo(page)}>another one</a>}
          </p>
          {children(found)}
        </>
      )}
    </Loaded>
  );
}

function ChooseTenant({ page }: { readonly page: string }) {
  const list = useList<Tenant>("/admin/v1/tenants");
  return (
    <Panel title="Which tenant?">
      <ListTable
        title="Tenants"
        columns={[
          {
            title: "Name",
            cell: ({ id, name }) => (
              <a href={linkTo(page, [id])}>
                <Name text={name} absent={id} />
              </a>
            ),
          },
          { title: "Id", width: 1.5, cell: ({ id }) => <code>{id}</code> },
          { title: "State", width: 0.6, cell: ({ status }) => <StatusBadge status={status} /> },
        ]}
        list={list}
        empty={<NoTenant />}
      />
      <Form isInline submit="Show" onSubmit={async (values) => goTo(linkTo(page, [textOf(values, "tenant_id")]))}>
        <TextField name="tenant_id" label="Or by its id" placeholder="tenant_…" />
      </Form>
    </Panel>
  );
}

const NoTenant = () => (
  <>
    There is no tenant yet. Make one in <a href={linkTo("tenants")}>Tenants</a>, then a key for it.
  </>
);

export const StatusBadge = ({ status }: Pick<Tenant, "status">) => (
  <Badge tone={status === "active" ? "good" : "warn"}>{status}</Badge>
);
