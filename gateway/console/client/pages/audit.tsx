/** Who changed what, and when. */
import { ago, time } from "../kit/format.ts";
import { Page as PageFrame } from "../kit/parts.tsx";
import { useList } from "../kit/resource.ts";
import { type Column, ListTable } from "../kit/table.tsx";

interface AuditEvent {
  readonly id: string;
  readonly at: number;
  readonly request_id: string;
  readonly actor: { readonly key_id: string; readonly tenant_id: string | null };
  readonly tenant_id: string | null;
  readonly action: string;
  readonly object_ids: Readonly<Record<string, string>>;
}

const columns: readonly Column<AuditEvent>[] = [
  { title: "When", width: 2.1, cell: ({ at }) => <time title={ago(at)}>{time(at)}</time> },
  { title: "What", width: 2.3, cell: ({ action }) => <code>{action}</code> },
  {
    title: "On",
    width: 2,
    cell: ({ object_ids }) => <code>{[...new Set(Object.values(object_ids))].join(" ")}</code>,
  },
  {
    title: "By",
    width: 1.6,
    cell: ({ actor }) => (
      <>
        <code>{actor.key_id}</code> {actor.tenant_id === null && <span class="soft">platform</span>}
      </>
    ),
  },
  { title: "Request", width: 1.3, cell: ({ request_id }) => <code>{request_id}</code> },
];

export function Page() {
  const list = useList<AuditEvent>("/admin/v1/audit");
  return (
    <PageFrame
      title="Audit log"
      about="Every change and every sign-in, the latest first. Reading and asking are not on record."
    >
      <ListTable title="Audit log" columns={columns} list={list} empty="Nothing was changed yet." />
    </PageFrame>
  );
}
