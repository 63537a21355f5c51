/** The fragments of a file: how long each is, whether it is prepared, and where its KV lies. */
import { ago, count, tierWord } from "../kit/format.ts";
import { Badge, Panel } from "../kit/parts.tsx";
import { useList } from "../kit/resource.ts";
import { linkTo } from "../kit/router.ts";
import { type Column, ListTable } from "../kit/table.tsx";
import type { Fragment } from "./types.ts";

/** "worker-0, pool"; "files" for what all workers share. */
export const whereText = ({ worker, tier }: Fragment["resident"][number]): string =>
  worker === null ? tierWord(tier) : `worker-${worker}, ${tierWord(tier)}`;

const columns: readonly Column<Fragment>[] = [
  { title: "Fragment", isNumber: true, width: 0.6, cell: ({ index }) => count(index + 1) },
  {
    title: "Tokens",
    isNumber: true,
    width: 0.6,
    cell: ({ span_tokens, text_tokens }) => count(span_tokens ?? text_tokens),
  },
  {
    title: "Prepared",
    cell: ({ prepared, pinned }) => (
      <>
        {prepared === null ? <span class="soft">no</span> : ago(prepared.at)} {pinned && <Badge>pinned</Badge>}
      </>
    ),
  },
  {
    title: "KV",
    width: 2,
    cell: ({ resident }) =>
      resident.length === 0 ? (
        <span class="soft">nowhere: computed when it is asked for</span>
      ) : (
        resident.map(whereText).join("; ")
      ),
  },
];

export function FragmentPanel({ corpusId, fileId }: { readonly corpusId: string; readonly fileId: string }) {
  const path = `/admin/v1/vector_stores/${encodeURIComponent(corpusId)}/fragments`;
  const list = useList<Fragment>(path, { file_id: fileId });
  return (
    <Panel
      title="Fragments of the file"
      actions={
        <a class="button" href={linkTo("corpora", [corpusId])}>
          Close
        </a>
      }
    >
      <ListTable title="Fragments" columns={columns} list={list} empty="It has none: it was not read yet, or failed." />
    </Panel>
  );
}
