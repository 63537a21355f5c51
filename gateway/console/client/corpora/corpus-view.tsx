/** One corpus: dropping files into it, what became of each, and preparing it. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { call } from "../kit/api.ts";
import { Dialog } from "../kit/dialog.tsx";
import { complain, note } from "../kit/feedback.tsx";
import { Cancel, Form } from "../kit/form.tsx";
import { bytes, count } from "../kit/format.ts";
import { Name, visible } from "../kit/name.tsx";
import { ErrorNote, Figures, Loaded, Page as PageFrame, Panel } from "../kit/parts.tsx";
import { useGet, useList } from "../kit/resource.ts";
import { goTo, linkTo, route } from "../kit/router.ts";
import { may } from "../kit/session.ts";
import { DropZone } from "./drop-zone.tsx";
import type { GivenFile } from "./dropped-files.ts";
import { FileTable } from "./file-table.tsx";
import { FragmentPanel } from "./fragment-panel.tsx";
import { PreparePanel } from "./prepare-panel.tsx";
import type { Corpus, CorpusFile } from "./types.ts";
import { mostFiles, Uploads } from "./uploads.ts";

/** How often a corpus is asked for while files of it are being read, and while nothing happens. */
const [busyMs, idleMs] = [700, 15_000];

export function CorpusView({ id }: { readonly id: string }) {
  const [everyMs, setEveryMs] = useState(busyMs);
  const corpus = useGet<Corpus>(`/v1/vector_stores/${encodeURIComponent(id)}`, undefined, { everyMs });
  const files = useList<CorpusFile>(`/v1/vector_stores/${encodeURIComponent(id)}/files`);
  const uploads = useMemo(() => new Uploads(id, () => setEveryMs(busyMs)), [id]);
  useEffect(() => () => uploads.leave(), [uploads]);
  const { data } = corpus;
  const isReading = (data?.file_counts.in_progress ?? 0) > 0;
  const isSending = uploads.list.value.some(({ state }) => state === "waiting" || state === "sending");
  useEffect(() => setEveryMs(isReading || isSending ? busyMs : idleMs), [isReading, isSending]);
  // The table is asked for anew when a count has changed.
  const counts = JSON.stringify(data?.file_counts);
  useEffect(() => files.reload(), [counts]);
  const [, fileId] = route.value.rest;
  const add = (given: readonly GivenFile[]): void => {
    const left = uploads.add(given);
    if (left > 0) complain(new Error(`${count(left)} files were left out: at most ${count(mostFiles)} at a time.`));
  };
  if (data === undefined) {
    return (
      <PageFrame title="Corpus" about={<code>{id}</code>}>
        <Loaded resource={corpus}>{() => null}</Loaded>
      </PageFrame>
    );
  }
  return (
    <PageFrame
      title={visible(data.name) || "Corpus without a name"}
      about={<code>{id}</code>}
      actions={<CorpusActions id={id} />}
    >
      {corpus.error !== undefined && <ErrorNote message={corpus.error} onRetry={corpus.reload} />}
      <CorpusFigures corpus={data} />
      {may("corpus:write") && <DropZone onFiles={add} />}
      <UploadList uploads={uploads} />
      {may("corpus:prepare") && <PreparePanel id={id} fileCounts={counts ?? ""} />}
      <Panel title="Files">
        <FileTable corpusId={id} files={files} onChange={() => setEveryMs(busyMs)} />
      </Panel>
      {fileId !== undefined && <FragmentPanel key={fileId} corpusId={id} fileId={fileId} />}
    </PageFrame>
  );
}

function CorpusActions({ id }: { readonly id: string }) {
  const [isDeleting, setDeleting] = useState(false);
  const remove = async (): Promise<void> => {
    await call("DELETE", `/v1/vector_stores/${encodeURIComponent(id)}`);
    note("The corpus is deleted, with its index and KV.");
    goTo(linkTo("corpora"));
  };
  return (
    <>
      {may("inference") && (
        <a class="button" href={linkTo("ask", [], { corpus: id })}>
          Ask it
        </a>
      )}
      {may("corpus:write") && (
        <button type="button" class="danger" onClick={() => setDeleting(true)}>
          Delete
        </button>
      )}
      {isDeleting && (
        <Dialog title="Delete this corpus?" onClose={() => setDeleting(false)}>
          <p>Nobody finds its text any more, and its KV is evicted. The uploaded files stay.</p>
          <Form onSubmit={remove} submit="Delete" isDanger actions={<Cancel onClick={() => setDeleting(false)} />}>
            {null}
          </Form>
        </Dialog>
      )}
    </>
  );
}

const CorpusFigures = ({ corpus: { file_counts: files, usage_bytes } }: { readonly corpus: Corpus }) => (
  <Figures
    figures={[
      { label: "Files", value: count(files.total) },
      { label: "Can be searched", value: count(files.completed) },
      { label: "Being read", value: count(files.in_progress) },
      { label: "Failed", value: count(files.failed + files.cancelled) },
      { label: "Text", value: bytes(usage_bytes) },
    ]}
  />
);

const stateWords = { waiting: "waits", sending: "is being sent", added: "sent", failed: "failed" } as const;
/** Of a large folder the files that are under way or failed are shown. */
const mostShown = 50;

function UploadList({ uploads }: { readonly uploads: Uploads }) {
  const list = uploads.list.value;
  if (list.length === 0) return null;
  const sent = list.filter(({ state }) => state === "added").length;
  const open = list.filter(({ state }) => state !== "added");
  return (
    <Panel
      title="Uploads"
      actions={
        <button type="button" onClick={() => uploads.clear()}>
          Clear
        </button>
      }
    >
      <label>
        {count(sent)} of {count(list.length)} sent <progress max={list.length} value={sent} />
      </label>
      <ul class="uploads">
        {open.slice(0, mostShown).map(({ key, path, state, reason }) => (
          <li key={key}>
            <Name text={path} /> <span class="soft">{stateWords[state]}</span>
            {reason !== undefined && <ErrorNote message={reason} onRetry={() => uploads.retry(key)} />}
          </li>
        ))}
      </ul>
      {open.length > mostShown && <p class="soft">and {count(open.length - mostShown)} more</p>}
    </Panel>
  );
}
