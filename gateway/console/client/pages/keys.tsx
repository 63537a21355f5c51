/** A tenant's API keys: made, shown once, revoked. */
import { useState } from "preact/hooks";
import { OfTenant, type Tenant, tenantInView } from "../administration/tenant.tsx";
import { call } from "../kit/api.ts";
import { Dialog } from "../kit/dialog.tsx";
import { note } from "../kit/feedback.tsx";
import { Cancel, CheckGroup, Form, SelectField, TextField, textOf } from "../kit/form.tsx";
import { ago, time } from "../kit/format.ts";
import { Name, visible } from "../kit/name.tsx";
import { Badge, CopyText, Page as PageFrame } from "../kit/parts.tsx";
import { useList } from "../kit/resource.ts";
import { linkTo } from "../kit/router.ts";
import { may, session } from "../kit/session.ts";
import { type Column, ListTable } from "../kit/table.tsx";

interface ApiKey {
  readonly id: string;
  readonly name: string;
  readonly prefix: string;
  readonly scopes: readonly string[];
  readonly created_at: number;
  readonly revoked_at: number | null;
  readonly expires_at: number | null;
}

const scopes: readonly (readonly [scope: string, about: string])[] = [
  ["inference", "asks questions"],
  ["corpus:read", "lists and searches documents"],
  ["corpus:write", "uploads and deletes documents"],
  ["corpus:prepare", "computes fragments ahead, pins and evicts them"],
  ["tenant:admin", "manages this tenant: keys, usage, audit log"],
  ["platform:read", "watches the whole platform"],
  ["platform:admin", "administers the whole platform"],
];
const usualScopes = ["inference", "corpus:read", "corpus:write", "corpus:prepare"];

const daySeconds = 86_400;
const lives: readonly (readonly [seconds: string, label: string])[] = [
  ["", "until it is revoked"],
  ...([1, 7, 30, 90, 365] as const).map(
    (days) => [String(days * daySeconds), days === 1 ? "a day" : `${days} days`] as const,
  ),
];

type Open = { readonly kind: "new" } | { readonly kind: "revoke"; readonly key: ApiKey } | undefined;

export function Page() {
  const [open, setOpen] = useState<Open>();
  return (
    <PageFrame
      title="API keys"
      about="A key is shown once, when it is made. Revoking one ends what it may do, its sessions here too, with the next request."
      actions={
        // Of no tenant there can be none.
        tenantInView() !== undefined && (
          <button type="button" class="primary" onClick={() => setOpen({ kind: "new" })}>
            New key
          </button>
        )
      }
    >
      <OfTenant page="keys">{(tenant) => <Keys tenant={tenant} open={open} setOpen={setOpen} />}</OfTenant>
    </PageFrame>
  );
}

interface KeysProps {
  readonly tenant: Tenant;
  readonly open: Open;
  readonly setOpen: (open: Open) => void;
}

function Keys({ tenant, open, setOpen }: KeysProps) {
  const list = useList<ApiKey>(`/admin/v1/tenants/${tenant.id}/keys`);
  const close = (): void => setOpen(undefined);
  return (
    <>
      <ListTable
        title="API keys"
        columns={columnsOf(tenant, (key) => setOpen({ kind: "revoke", key }))}
        list={list}
        empty="This tenant has no key yet. Make one with “New key”: programs send it, and people sign in here with it."
      />
      {open?.kind === "new" && <NewKey tenant={tenant} onMade={list.reload} onClose={close} />}
      {open?.kind === "revoke" && (
        <RevokeKey
          apiKey={open.key}
          onClose={close}
          onDone={() => {
            close();
            note("The key was revoked.");
            list.reload();
          }}
        />
      )}
    </>
  );
}

function State({ apiKey: { revoked_at, expires_at } }: { readonly apiKey: ApiKey }) {
  if (revoked_at !== null) return <Badge tone="bad">revoked {ago(revoked_at)}</Badge>;
  if (expires_at === null) return <Badge tone="good">valid</Badge>;
  const hasExpired = expires_at * 1_000 <= Date.now();
  return (
    <Badge tone={hasExpired ? "bad" : "warn"}>
      {hasExpired ? "expired" : "expires"} {ago(expires_at)}
    </Badge>
  );
}

const columnsOf = (tenant: Tenant, revoke: (key: ApiKey) => void): readonly Column<ApiKey>[] => [
  {
    title: "Name",
    width: 2.4,
    cell: ({ id, name }) => (
      <>
        <Name text={name} /> {id === session.value?.key_id && <Badge>this session's</Badge>}
      </>
    ),
  },
  { title: "Begins with", width: 1, cell: ({ prefix }) => <code>{prefix}…</code> },
  {
    title: "Scopes",
    width: 2,
    cell: ({ scopes: granted }) => <span title={granted.join(" ")}>{granted.join(" ")}</span>,
  },
  { title: "Made", width: 1.7, cell: ({ created_at: at }) => <time title={ago(at)}>{time(at)}</time> },
  { title: "State", width: 1.4, cell: (apiKey) => <State apiKey={apiKey} /> },
  {
    title: "Change",
    width: 1.2,
    cell: (apiKey) =>
      apiKey.revoked_at === null && (
        <span class="links">
          <a href={linkTo("limits", [tenant.id, apiKey.id])} aria-label={`Limits of ${labelOf(apiKey)}`}>
            limits
          </a>
          <button type="button" class="danger" aria-label={`Revoke ${labelOf(apiKey)}`} onClick={() => revoke(apiKey)}>
            Revoke
          </button>
        </span>
      ),
  },
];

const labelOf = ({ name, prefix }: ApiKey): string => visible(name) || `${prefix}…`;

interface NewKeyProps {
  readonly tenant: Tenant;
  readonly onMade: () => void;
  readonly onClose: () => void;
}

function NewKey({ tenant, onMade, onClose }: NewKeyProps) {
  const [made, setMade] = useState<string>();
  const given = scopes.filter(([scope]) => may(scope) || (scope === "platform:read" && may("platform:admin")));
  if (made !== undefined) {
    return (
      <Dialog title="The new key" onClose={onClose}>
        <p>It is shown this once. Whoever has it may do what its scopes say.</p>
        <CopyText text={made} label="the key" />
      </Dialog>
    );
  }
  const make = async (values: FormData): Promise<void> => {
    const life = textOf(values, "expires_in_seconds");
    const body = {
      ...{ name: textOf(values, "name"), scopes: values.getAll("scopes") },
      ...(life !== "" && { expires_in_seconds: Number(life) }),
    };
    const { key } = await call<{ readonly key: string }>("POST", `/admin/v1/tenants/${tenant.id}/keys`, { body });
    onMade();
    setMade(key);
  };
  return (
    <Dialog title="New key" onClose={onClose}>
      <Form submit="Make" onSubmit={make}>
        <TextField name="name" label="Name" hint="Who or what will use it." />
        <CheckGroup name="scopes" label="What it may do" checked={usualScopes} options={given} />
        <SelectField name="expires_in_seconds" label="Valid for" options={lives} />
      </Form>
    </Dialog>
  );
}

interface RevokeKeyProps {
  readonly apiKey: ApiKey;
  readonly onDone: () => void;
  readonly onClose: () => void;
}

const RevokeKey = ({ apiKey, onDone, onClose }: RevokeKeyProps) => (
  <Dialog title="Revoke a key" onClose={onClose}>
    <p>
      <Name text={apiKey.name} absent={apiKey.prefix} /> (<code>{apiKey.prefix}…</code>) is refused from the next
      request on, for good.
      {apiKey.id === session.value?.key_id && <strong> It is the key of this session, which ends too.</strong>}
    </p>
    <p class="soft">It may: {apiKey.scopes.join(", ")}.</p>
    <Form
      submit="Revoke"
      isDanger
      actions={<Cancel onClick={onClose} />}
      onSubmit={async () => {
        await call("DELETE", `/admin/v1/keys/${apiKey.id}`);
        onDone();
      }}
    >
      {null}
    </Form>
  </Dialog>
);
