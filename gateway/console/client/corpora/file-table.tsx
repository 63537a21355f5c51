/** The files of a corpus, each with its state, why it failed, and what can be done about that. */
import { call } from "../kit/api.ts";
import { complain, note } from "../kit/feedback.tsx";
import { bytes } from "../kit/format.ts";
import { Name } from "../kit/name.tsx";
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
  const remove = (file: CorpusFile): void =>
    act("It is taken out, with its index and KV.", () => call("DELETE", `${path}/${file.id}`));
  const columns: readonly Column<CorpusFile>[] = [
    {
      title: "File",
      width: 2.4,
      cell: (file) => (
        <a href={linkTo("corpora", [corpusId, file.id])}>
          <Name text={file.spangate?.filename ?? file.id} />
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
              <button type="button" onClick={() => retry(file)}>
                Retry
              </button>
            )}{" "}
            {file.status !== "in_progress" && (
              <button type="button" onClick={() => remove(file)}>
                Take out
              </button>
            )}
          </>
        ),
    },
  ];
  return <ListTable title="Files" columns={columns} list={files} empty="No files yet. Drop some above." />;
}
