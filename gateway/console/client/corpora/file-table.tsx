/** The files of a corpus, each with its state, why it failed, and what can be done about that. */
import { useState } from "preact/hooks";
import { call } from "../kit/api.ts";
import { Dialog } from "../kit/dialog.tsx";
import { complain, note } from "../kit/feedback.tsx";
import { Cancel, Form } from "../kit/form.tsx";
import { bytes } from "../kit/format.ts";
import { Name, visible } from "../kit/name.tsx";
import { Badge, type Tone } from "../kit/parts.tsx";
import type { List } from "../kit/resource.ts";
import { linkTo } from "../kit/router.ts";
import { may } from "../kit/session.ts";
import { type Column, ListTable } from "../kit/table.tsx";
import type { CorpusFile } from "./types.ts";

interface FileTableProps {
  readonly corpusId: string;
  readonly files: List<CorpusFile>;
  /** Called when something was asked of a file. */
  readonly onChange: () => void;
}

const tones: Readonly<Record<CorpusFile["status"], Tone>> = {
  ...{ in_progress: "plain", completed: "good", failed: "bad", cancelled: "warn" },
};
const words: Readonly<Record<CorpusFile["status"], string>> = {
  ...{ in_progress: "being read", completed: "ready", failed: "failed", cancelled: "cancelled" },
};

export function FileTable({ corpusId, files, onChange }: FileTableProps) {
  const path = `/v1/vector_stores/${encodeURIComponent(corpusId)}/files`;
  const act = (done: string, action: () => Promise<unknown>): void => {
    action().then(() => {
      note(done);
      files.reload();
      onChange();
    }, complain);
  };
  // Taken out and put in again: it is read as if it were new.
  const retry = (file: CorpusFile): void =>
    act("It is read again.", async () => {
      await call("DELETE", `${path}/${file.id}`);
      await call("POST", path, { body: { file_id: file.id, attributes: file.attributes } });
    });
  const [leaving, setLeaving] = useState<CorpusFile>();
  const takeOut = async (file: CorpusFile): Promise<void> => {
    await call("DELETE", `${path}/${file.id}`);
    setLeaving(undefined);
    note("It is taken out, with its index and KV.");
    files.reload();
    onChange();
  };
  return (
    <>
      <ListTable
        title="Files"
        columns={columnsOf(corpusId, retry, setLeaving)}
        list={files}
        empty={may("corpus:write") ? "No files yet. Drop some above." : "No files yet."}
      />
      {leaving !== undefined && (
        <Dialog title="Take this file out?" onClose={() => setLeaving(undefined)}>
          <p>
            Nobody finds the text of <Name text={nameOf(leaving)} /> in this corpus any more, and its KV is evicted. The
            uploaded file stays.
          </p>
          <Form
            submit="Take it out"
            isDanger
            onSubmit={() => takeOut(leaving)}
            actions={<Cancel onClick={() => setLeaving(undefined)} />}
          >
            {null}
          </Form>
        </Dialog>
      )}
    </>
  );
}

type Act = (file: CorpusFile) => void;

const nameOf = ({ id, spangate }: CorpusFile): string => spangate?.filename ?? id;

const columnsOf = (corpusId: string, retry: Act, takeOut: Act): readonly Column<CorpusFile>[] => [
  {
    title: "File",
    width: 2.4,
    cell: (file) => (
      <a href={linkTo("corpora", [corpusId, file.id])}>
        <Name text={nameOf(file)} />
      </a>
    ),
  },
  { title: "State", cell: ({ status }) => <Badge tone={tones[status]}>{words[status]}</Badge> },
  {
    title: "Reason",
    width: 2,
    cell: ({ last_error: error }) =>
      error !== null && <span title={`${error.code}: ${error.message}`}>{error.message}</span>,
  },
  { title: "Text", isNumber: true, width: 0.8, cell: ({ usage_bytes }) => bytes(usage_bytes) },
  {
    title: "Actions",
    width: 1.2,
    cell: (file) =>
      may("corpus:write") && (
        <>
          {(file.status === "failed" || file.status === "cancelled") && (
            <button type="button" aria-label={`Retry ${visible(nameOf(file))}`} onClick={() => retry(file)}>
              Retry
            </button>
          )}{" "}
          {file.status !== "in_progress" && (
            <button type="button" aria-label={`Take out ${visible(nameOf(file))}`} onClick={() => takeOut(file)}>
              Take out
            </button>
          )}
        </>
      ),
  },
];
