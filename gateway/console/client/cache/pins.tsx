/** The fragments of a corpus with where their KV lies: pinning keeps it, evicting lets go of it. */
import { useState } from "preact/hooks";
import { whereText } from "../corpora/fragment-panel.tsx";
import type { Fragment } from "../corpora/types.ts";
import { call } from "../kit/api.ts";
import { complain, note } from "../kit/feedback.tsx";
import { count } from "../kit/format.ts";
import { Name, visible } from "../kit/name.tsx";
import { Badge, ErrorNote, Panel } from "../kit/parts.tsx";
import { useList } from "../kit/resource.ts";
import { linkTo } from "../kit/router.ts";
import { may } from "../kit/session.ts";
import { type Column, ListTable } from "../kit/table.tsx";

interface Corpus {
  readonly id: string;
  readonly name: string;
}

export function Pins() {
  const corpora = useList<Corpus>("/v1/vector_stores");
  const [chosen, setChosen] = useState("");
  const corpus = corpora.rows.some(({ id }) => id === chosen) ? chosen : (corpora.rows[0]?.id ?? "");
  return (
    <Panel
      title="Fragments"
      actions={
        corpora.rows.length > 0 && (
          <label class="corpus-choice">
            Corpus{" "}
            <select value={corpus} onChange={({ currentTarget: { value } }) => setChosen(value)}>
              {corpora.rows.map(({ id, name }) => (
                <option key={id} value={id}>
                  {visible(name) || id}
                </option>
              ))}
            </select>
          </label>
        )
      }
    >
      {corpus !== "" && <Fragments corpusId={corpus} key={corpus} />}
      {corpus === "" && !corpora.isLoading && corpora.error === undefined && (
        <p class="soft">
          There is no corpus yet. <a href={linkTo("corpora")}>Make one</a>, and what of it is held is listed here.
        </p>
      )}
      {corpora.error !== undefined && <ErrorNote message={corpora.error} onRetry={corpora.reload} />}
    </Panel>
  );
}

function Fragments({ corpusId }: { readonly corpusId: string }) {
  const list = useList<Fragment>(`/admin/v1/vector_stores/${encodeURIComponent(corpusId)}/fragments`);
  const act = async (fragment: Fragment, action: "pin" | "unpin" | "evict"): Promise<void> => {
    try {
      await call("POST", `/admin/v1/fragments/${encodeURIComponent(fragment.id)}/${action}`, { body: {} });
      note(`Fragment ${fragment.index + 1}: ${said[action]}`);
      list.reload();
    } catch (error) {
      complain(error);
    }
  };
  const actions: Column<Fragment> = {
    title: "Change",
    width: 1.2,
    cell: (fragment) => (
      <>
        <ActButton fragment={fragment} action={fragment.pinned ? "unpin" : "pin"} onAct={act} />{" "}
        <ActButton fragment={fragment} action="evict" onAct={act} />
      </>
    ),
  };
  const shown = may("corpus:prepare") ? [...columns, actions] : columns;
  return <ListTable title="Fragments" columns={shown} list={list} empty="No file of it has been read yet." />;
}

const said = { pin: "it is kept.", unpin: "it may go when room is needed.", evict: "its KV is gone." } as const;
const words = { pin: "Pin", unpin: "Unpin", evict: "Evict" } as const;

interface ActButtonProps {
  readonly fragment: Fragment;
  readonly action: keyof typeof words;
  readonly onAct: (fragment: Fragment, action: keyof typeof words) => Promise<void>;
}

const ActButton = ({ fragment, action, onAct }: ActButtonProps) => (
  <button
    type="button"
    aria-label={`${words[action]} fragment ${fragment.index + 1} of ${visible(fragment.filename)}`}
    onClick={() => void onAct(fragment, action)}
  >
    {words[action]}
  </button>
);

const columns: readonly Column<Fragment>[] = [
  { title: "File", width: 1.6, cell: ({ filename }) => <Name text={filename} /> },
  { title: "Fragment", isNumber: true, width: 0.6, cell: ({ index }) => count(index + 1) },
  {
    title: "Tokens",
    isNumber: true,
    width: 0.6,
    cell: ({ span_tokens, text_tokens }) => count(span_tokens ?? text_tokens),
  },
  {
    title: "KV",
    width: 1.6,
    cell: ({ resident, pinned }) => (
      <>
        {resident.length === 0 ? <span class="soft">nowhere</span> : resident.map(whereText).join("; ")}{" "}
        {pinned && <Badge>pinned</Badge>}
      </>
    ),
  },
];
