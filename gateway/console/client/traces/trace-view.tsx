/** One request: where its time went, its stages, and where the KV of its fragments was from. */
import { SourceBars } from "../answers/sources.tsx";
import { count, duration, percent, time } from "../kit/format.ts";
import { Badge, Figures, Loaded, Panel } from "../kit/parts.tsx";
import { useGet } from "../kit/resource.ts";
import { foundPart, type Trace, whereTimeWent } from "./trace.ts";
import { Waterfall } from "./waterfall.tsx";

/** @param id the request's, as its answer has it in `x-request-id` and in `spangate.request_id` */
export function TraceView({ id }: { readonly id: string }) {
  const trace = useGet<Trace>(`/admin/v1/traces/${encodeURIComponent(id)}`);
  return <Loaded resource={trace}>{(loaded) => <TraceParts trace={loaded} />}</Loaded>;
}

/** The stages alone, for pages that show a request's answer; nothing while they are on their way or are not kept. */
export function WaterfallOf({ id }: { readonly id: string }) {
  const { data, error } = useGet<Trace>(`/admin/v1/traces/${encodeURIComponent(id)}`);
  if (error !== undefined) return <p class="soft">The server keeps no trace of this request.</p>;
  if (data === undefined) return <p class="soft">Loading …</p>;
  return (
    <>
      <p>{whereTimeWent(data)}</p>
      <Waterfall trace={data} />
    </>
  );
}

function TraceParts({ trace }: { readonly trace: Trace }) {
  return (
    <>
      <p class="lead">{whereTimeWent(trace)}</p>
      <Figures
        figures={[
          { label: "First token", value: duration(trace.ttft_ms), note: `of ${duration(trace.duration_ms)} in all` },
          { label: "Waited for a worker", value: duration(trace.queue_ms) },
          {
            label: "Prompt found",
            value: percent(foundPart(trace)),
            note: `${count(trace.cached_tokens)} of ${count(trace.prompt_tokens)} tokens`,
          },
          { label: "Generated", value: count(trace.completion_tokens), note: "tokens" },
        ]}
      />
      <Panel title="Stages">
        <Waterfall trace={trace} />
      </Panel>
      <Panel title="Fragments">
        <FragmentBars trace={trace} />
      </Panel>
      <Panel title="Request">
        <Facts trace={trace} />
      </Panel>
    </>
  );
}

function FragmentBars({ trace: { fragments, left_out } }: { readonly trace: Trace }) {
  // Documents that came with the request have no id here, and are told apart by their place in the prompt.
  const spans = fragments.map(({ id, ...fragment }, index) => ({
    ...fragment,
    id: `${index}`,
    name: id ?? `document ${index + 1} of the request`,
  }));
  const workers = [...new Set(fragments.map(({ worker }) => worker))].join(", ");
  return (
    <>
      <SourceBars spans={spans} nameOf={(id) => spans[Number(id)]?.name} worker={workers} />
      {left_out.fragments > 0 && <p class="soft">and {count(left_out.fragments)} more, which were not kept</p>}
    </>
  );
}

function Facts({ trace }: { readonly trace: Trace }) {
  const reasons = [...new Set(trace.worker_runs.map(({ finish_reason }) => finish_reason))].join(", ");
  return (
    <dl class="details">
      <dt>Id</dt>
      <dd>
        <code>{trace.id}</code>
      </dd>
      <dt>Route</dt>
      <dd>
        <code>{trace.route}</code>
      </dd>
      <dt>Answer</dt>
      <dd>
        <Badge tone={trace.failed ? "bad" : "good"}>{trace.failed ? "failed" : "answered"}</Badge> {trace.status}
        {reasons !== "" && `, ended by: ${reasons}`}
      </dd>
      <dt>Began</dt>
      <dd>{time(trace.started_at)}</dd>
      <dt>Tenant</dt>
      <dd>
        <code>{trace.tenant_id}</code>
      </dd>
      <dt>API key</dt>
      <dd>
        <code>{trace.key_id}</code>
      </dd>
    </dl>
  );
}
