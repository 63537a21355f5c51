/** All tenants: made, renamed, disabled, deleted; and the ways to one's keys, limits and usage. */
import { useState } from "preact/hooks";
import { StatusBadge, type Tenant } from "../administration/tenant.tsx";
import { call } from "../kit/api.ts";
import { Dialog } from "../kit/dialog.tsx";
import { note } from "../kit/feedback.tsx";
import { Form, SelectField, TextField, textOf } from "../kit/form.tsx";
import { ago, counted, time } from "../kit/format.ts";
import { Name, visible } from "../kit/name.tsx";
import { Page as PageFrame } from "../kit/parts.tsx";
import { useList } from "../kit/resource.ts";
import { linkTo } from "../kit/router.ts";
import { type Column, ListTable } from "../kit/table.tsx";

const columnsOf = (manage: (tenant: Tenant) => void): readonly Column<Tenant>[] => [
  { title: "Name", width: 2, cell: ({ name }) => <Name text={name} /> },
  { title: "Id", width: 2.5, cell: ({ id }) => <code>{id}</code> },
  {
    title: "State",
    cell: ({ status }) => <StatusBadge status={status} />,
  },
  { title: "Made", width: 1.7, cell: ({ created_at: at }) => <time title={ago(at)}>{time(at)}</time> },
  {
    title: "Look at",
    width: 1.6,
    cell: ({ id, name }) => (
      <span class="links">
        {(["keys", "limits", "usage"] as const).map((page) => (
          <a key={page} href={linkTo(page, [id])} aria-label={`${page} of ${visible(name)}`}>
            {page}
          </a>
        ))}
      </span>
    ),
  },
  {
    title: "Change",
    cell: (tenant) => (
      <button type="button" aria-label={`Change ${visible(tenant.name)}`} onClick={() => manage(tenant)}>
        Change …
      </button>
    ),
  },
];

type Open = { readonly kind: "new" } | { readonly kind: "change"; readonly tenant: Tenant } | undefined;

export function Page() {
  const list = useList<Tenant>("/admin/v1/tenants");
  const [open, setOpen] = useState<Open>();
  const close = (): void => setOpen(undefined);
  const done = (text: string): void => {
    close();
    note(text);
    list.reload();
  };
  return (
    <PageFrame
      title="Tenants"
      about="Each owns its keys, documents and KV; none learns of another."
      actions={
        <button type="button" class="primary" onClick={() => setOpen({ kind: "new" })}>
          New tenant
        </button>
      }
    >
      <ListTable
        title="Tenants"
        columns={columnsOf((tenant) => setOpen({ kind: "change", tenant }))}
        list={list}
        empty="There is no tenant yet. Make one with “New tenant”, then a key for it: it is what its programs send."
      />
      {open?.kind === "new" && <NewTenant onDone={done} onClose={close} />}
      {open?.kind === "change" && <ChangeTenant tenant={open.tenant} onDone={done} onClose={close} />}
    </PageFrame>
  );
}

interface DialogProps {
  readonly onDone: (text: string) => void;
  readonly onClose: () => void;
}

const NewTenant = ({ onDone, onClose }: DialogProps) => (
  <Dialog title="New tenant" onClose={onClose}>
    <Form
      submit="Make"
      onSubmit={async (values) => {
        const name = textOf(values, "name");
        await call("POST", "/admin/v1/tenants", { body: { name } });
        onDone(`Tenant ${visible(name)} was made.`);
      }}
    >
      <TextField name="name" label="Name" />
    </Form>
  </Dialog>
);

function ChangeTenant({ tenant, onDone, onClose }: DialogProps & { readonly tenant: Tenant }) {
  const path = `/admin/v1/tenants/${tenant.id}`;
  const name = visible(tenant.name);
  return (
    <Dialog title={`Change ${name}`} onClose={onClose}>
      <Form
        submit="Save"
        onSubmit={async (values) => {
          await call("PATCH", path, { body: { name: textOf(values, "name"), status: textOf(values, "status") } });
          onDone(`Tenant ${name} was changed.`);
        }}
      >
        <TextField name="name" label="Name" value={tenant.name} />
        <SelectField
          name="status"
          label="State"
          value={tenant.status}
          options={[
            ["active", "active"],
            ["disabled", "disabled: its keys are refused, nothing is deleted"],
          ]}
        />
      </Form>
      <Form
        submit="Drop its KV"
        isDanger
        onSubmit={async () => {
          const { blocks } = await call<{ readonly blocks: number }>("DELETE", `${path}/cache`);
          onDone(`${counted(blocks, "block")} of ${name} dropped.`);
        }}
      >
        <p class="soft">All KV of the tenant is dropped from all workers, and computed again when it is asked for.</p>
      </Form>
      <Form
        submit="Delete the tenant"
        isDanger
        onSubmit={async (values) => {
          if (textOf(values, "confirm") !== tenant.id) throw new Error("That is not the tenant's id.");
          await call("DELETE", path);
          onDone(`Tenant ${name} was deleted.`);
        }}
      >
        <TextField name="confirm" label="Its id, to delete it with all it owns" hint={<code>{tenant.id}</code>} />
      </Form>
    </Dialog>
  );
}
