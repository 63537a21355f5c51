/** Who changed what, and when. */
import { useState } from "preact/hooks";
import { Dialog } from "../kit/dialog.tsx";
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

const columnsOf = (show: (event: AuditEvent) => void): readonly Column<AuditEvent>[] => [
  { title: "When", width: 1.7, cell: ({ at }) => <time title={ago(at)}>{time(at)}</time> },
  { title: "What", width: 3, cell: ({ action }) => <code>{action}</code> },
  {
    title: "On",
    width: 1.8,
    cell: ({ object_ids }) => <code>{[...new Set(Object.values(object_ids))].join(" ")}</code>,
  },
  {
    title: "By",
    width: 1.8,
    cell: ({ actor }) => (
      <>
        {actor.tenant_id === null && <span class="soft">platform </span>}
        <code>{actor.key_id}</code>
      </>
    ),
  },
  {
    title: "All of it",
    cell: (event) => (
      <button type="button" aria-label={`Show ${event.action} of ${time(event.at)}`} onClick={() => show(event)}>
        Show …
      </button>
    ),
  },
];

export function Page() {
  const list = useList<AuditEvent>("/admin/v1/audit");
  const [shown, setShown] = useState<AuditEvent>();
  return (
    <PageFrame
      title="Audit log"
      about="Every change and every sign-in, the latest first. Reading and asking are not on record."
    >
      <ListTable title="Audit log" columns={columnsOf(setShown)} list={list} empty="Nothing was changed yet." />
      {shown !== undefined && <EventDialog event={shown} onClose={() => setShown(undefined)} />}
    </PageFrame>
  );
}

/** What a row has no room for: whole ids, to compare with the log and with what a client has. */
function EventDialog({ event, onClose }: { readonly event: AuditEvent; readonly onClose: () => void }) {
  const { at, action, object_ids, actor, request_id } = event;
  const facts: readonly (readonly [name: string, id: string])[] = [
    ...Object.entries(object_ids),
    ["by key", actor.key_id],
    ...(actor.tenant_id === null ? [] : [["of tenant", actor.tenant_id] as const]),
    ["request", request_id],
  ];
  return (
    <Dialog title="On record" onClose={onClose}>
      <p>
        <code>{action}</code>, {time(at)}
      </p>
      <dl class="details">
        {facts.map(([name, id]) => (
          <div key={name}>
            <dt>{name.replaceAll("_", " ")}</dt>
            <dd>
              <code>{id}</code>
            </dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
