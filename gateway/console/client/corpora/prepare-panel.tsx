/** How much of a corpus has its KV computed ahead and where it lies, and a job that computes the rest, as it goes. */
import { useEffect, useRef, useState } from "preact/hooks";
import { call, get, isAbort, messageOf, stream } from "../kit/api.ts";
import { complain, say } from "../kit/feedback.tsx";
import { count, counted, percent } from "../kit/format.ts";
import { ErrorNote, Loaded, Panel } from "../kit/parts.tsx";
import { useResource } from "../kit/resource.ts";
import { whereText } from "./fragment-panel.tsx";
import type { Fragment, PrepareJob } from "./types.ts";

/** Fragments that are looked at: exact for most corpora, and what it says of others is said of their first. */
const mostFragments = 1_000;
const pageFragments = 100;

interface Prepared {
  readonly seen: number;
  readonly prepared: number;
  readonly resident: number;
  readonly hasMore: boolean;
  /** Fragments by where their KV lies. */
  readonly places: readonly (readonly [place: string, fragments: number])[];
}

async function preparedOf(id: string, signal: AbortSignal): Promise<Prepared> {
  const places = new Map<string, number>();
  let [seen, prepared, resident, hasMore] = [0, 0, 0, true];
  let after: string | undefined;
  while (hasMore && seen < mostFragments) {
    const path = `/admin/v1/vector_stores/${encodeURIComponent(id)}/fragments`;
    const page = await get<{ data: readonly Fragment[]; has_more: boolean; last_id: string | null }>(
      path,
      { limit: pageFragments, after },
      signal,
    );
    for (const fragment of page.data) {
      seen += 1;
      if (fragment.prepared !== null) prepared += 1;
      if (fragment.resident.length > 0) resident += 1;
      for (const place of new Set(fragment.resident.map(whereText))) places.set(place, (places.get(place) ?? 0) + 1);
    }
    hasMore = page.has_more;
    after = page.last_id ?? undefined;
  }
  return { seen, prepared, resident, hasMore, places: [...places].toSorted() };
}

interface PreparePanelProps {
  readonly id: string;
  /** Changes when files came or went. */
  readonly fileCounts: string;
}

export function PreparePanel({ id, fileCounts }: PreparePanelProps) {
  const [job, setJob] = useState<PrepareJob>();
  const [failure, setFailure] = useState<string>();
  const leaving = useRef<AbortController>(undefined);
  useEffect(() => () => leaving.current?.abort(), []);
  const state = useResource((signal) => preparedOf(id, signal), [id, fileCounts, job?.status]);
  const isRunning = job?.status === "queued" || job?.status === "running";
  const prepare = async (): Promise<void> => {
    if (isRunning) return;
    setFailure(undefined);
    leaving.current = new AbortController();
    const { signal } = leaving.current;
    try {
      const made = await call<PrepareJob>("POST", `/admin/v1/vector_stores/${encodeURIComponent(id)}/prepare`, {
        signal,
      });
      setJob(made);
      for await (const { data } of stream("GET", `/admin/v1/jobs/${made.id}/events`, { signal })) {
        setJob(JSON.parse(data) as PrepareJob);
      }
      say("Preparing has ended.");
    } catch (error) {
      if (!isAbort(error)) setFailure(messageOf(error));
    }
  };
  const cancel = (): void => {
    if (job !== undefined) call("POST", `/admin/v1/jobs/${job.id}/cancel`).catch(complain);
  };
  return (
    <Panel
      title="Prepared"
      actions={
        <>
          <button type="button" onClick={() => void prepare()} aria-disabled={isRunning}>
            Prepare all
          </button>
          {isRunning && (
            <button type="button" onClick={cancel}>
              Cancel
            </button>
          )}
        </>
      }
    >
      {failure !== undefined && <ErrorNote message={failure} />}
      {job !== undefined && <JobProgress job={job} />}
      <Loaded resource={state}>{(known) => <PreparedFacts known={known} />}</Loaded>
    </Panel>
  );
}

const JobProgress = ({ job: { status, done, total, error } }: { readonly job: PrepareJob }) => (
  <div>
    <label>
      Preparing: {status}, {count(done)} of {count(total)} fragments <progress max={Math.max(total, 1)} value={done} />
    </label>
    {error !== null && <ErrorNote message={error.message ?? error.code} />}
  </div>
);

function PreparedFacts({ known }: { readonly known: Prepared }) {
  const { seen, prepared, resident, hasMore, places } = known;
  if (seen === 0) return <p class="soft">There are no fragments yet.</p>;
  const of = hasMore ? `of the first ${counted(seen, "fragment")}` : `of ${counted(seen, "fragment")}`;
  return (
    <>
      <p>
        <strong>{percent(prepared / seen)} prepared</strong>, {percent(resident / seen)} with KV at hand, {of}
      </p>
      <ul class="source-bars">
        {places.map(([place, fragments]) => (
          <li key={place}>
            <span>{place}</span>
            <span class="source-bar found" style={{ width: `${(fragments / seen) * 100}%` }} />
            <span class="soft">{counted(fragments, "fragment")}</span>
          </li>
        ))}
      </ul>
    </>
  );
}
