/** Corpora: what is in them, how far they are read and prepared, and files that are dropped into one. */
import { useState } from "preact/hooks";
import { CorpusView } from "../corpora/corpus-view.tsx";
import type { Corpus } from "../corpora/types.ts";
import { call } from "../kit/api.ts";
import { Dialog } from "../kit/dialog.tsx";
import { note } from "../kit/feedback.tsx";
import { Form, TextField, textOf } from "../kit/form.tsx";
import { ago, bytes, count, time } from "../kit/format.ts";
import { Name } from "../kit/name.tsx";
import { Badge, Page as PageFrame } from "../kit/parts.tsx";
import { useList } from "../kit/resource.ts";
import { goTo, linkTo, route } from "../kit/router.ts";
import { may } from "../kit/session.ts";
import { type Column, ListTable } from "../kit/table.tsx";

const columns: readonly Column<Corpus>[] = [
  {
    title: "Name",
    width: 2,
    cell: ({ id, name }) => (
      <a href={linkTo("corpora", [id])}>
        <Name text={name} />
      </a>
    ),
  },
  { title: "Files", isNumber: true, cell: ({ file_counts: files }) => count(files.total) },
  {
    title: "State",
    width: 1.6,
    cell: ({ status, file_counts: files }) => (
      <>
        {status === "expired" ? <Badge tone="warn">expired</Badge> : null}
        {files.in_progress > 0 && <Badge>{count(files.in_progress)} being read</Badge>}
        {files.failed > 0 && <Badge tone="bad">{count(files.failed)} failed</Badge>}
        {status === "completed" && files.failed === 0 && <Badge tone="good">ready</Badge>}
      </>
    ),
  },
  { title: "Text", isNumber: true, cell: ({ usage_bytes }) => bytes(usage_bytes) },
  {
    title: "Last used",
    width: 1.2,
    cell: ({ last_active_at: at }) => <time title={time(at)}>{ago(at)}</time>,
  },
];

export function Page() {
  const [id] = route.value.rest;
  return id === undefined ? <CorpusList /> : <CorpusView key={id} id={id} />;
}

function CorpusList() {
  const list = useList<Corpus>("/v1/vector_stores");
  const [isMaking, setMaking] = useState(false);
  return (
    <PageFrame
      title="Corpora"
      about="Documents that are searched together; a vector store in the API."
      actions={
        may("corpus:write") && (
          <button type="button" class="primary" onClick={() => setMaking(true)}>
            New corpus
          </button>
        )
      }
    >
      <ListTable
        title="Corpora"
        columns={columns}
        list={list}
        empty={
          may("corpus:write")
            ? "There is no corpus yet. Make one with “New corpus”, then drop files into it."
            : "There is no corpus yet."
        }
      />
      {isMaking && <NewCorpus onClose={() => setMaking(false)} />}
    </PageFrame>
  );
}

function NewCorpus({ onClose }: { readonly onClose: () => void }) {
  const make = async (values: FormData): Promise<void> => {
    const { id } = await call<Corpus>("POST", "/v1/vector_stores", { body: { name: textOf(values, "name") } });
    note("The corpus is there. Drop files into it.");
    goTo(linkTo("corpora", [id]));
  };
  return (
    <Dialog title="New corpus" onClose={onClose}>
      <Form onSubmit={make} submit="Make it">
        <TextField name="name" label="Name" />
      </Form>
    </Dialog>
  );
}
