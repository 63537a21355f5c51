/** A span query: its text, what it becomes while one types, and running it. */
import { useEffect, useRef, useState } from "preact/hooks";
import { type AnswerReport, answerOf, type Usage } from "../answers/chat.ts";
import { CitationList, CitationMark, marksOf } from "../answers/citations.tsx";
import { Markdown } from "../answers/markdown.tsx";
import { SourceBars } from "../answers/sources.tsx";
import { ApiFailure, call, isAbort, messageOf } from "../kit/api.ts";
import { say } from "../kit/feedback.tsx";
import { count, duration } from "../kit/format.ts";
import { ErrorNote, Figures, Page as PageFrame, Panel } from "../kit/parts.tsx";
import { Editor, type Fault } from "../query/editor.tsx";
import { type ExplainedPlan, heldByPath, type Json, rowsOf } from "../query/tree.ts";
import { TreeDrawing } from "../query/tree-drawing.tsx";

const firstQuery = `g:
  temperature: 0
  input:
    cross:
    - system: You answer questions from the documents.
    # Spans: none sees another, and their order is free.
    - plus:
      - fragment: { text: The extension of Jon Vale is 3057. }
      - fragment: { text: Mara Ellison works as a cartographer. }
    - user: What is the extension of Jon Vale?
`;

interface Explanation {
  readonly rewritten: Json;
  readonly steps: readonly { readonly rule: string; readonly path: string }[];
  readonly more_steps: number;
  readonly plan: readonly ExplainedPlan[];
}

/** So long after the last key the query is explained. */
const waitMs = 300;

export function Page() {
  const [text, setText] = useState(firstQuery);
  const { explanation, fault, failure, isCurrent, again } = useExplained(text);
  return (
    <PageFrame title="Query" about="A tree in place of a prompt: which parts commute, and what is generated from what.">
      <div class="query">
        <Panel title="Query" actions={<a href="/docs/span-queries">The language</a>}>
          <Editor text={text} fault={fault} onText={setText} />
          <Runner text={text} />
        </Panel>
        <Panel title="What it becomes">
          <p class="soft" aria-live="polite">
            {fault !== undefined ? "Not a query yet." : isCurrent ? "" : "Explaining …"}
          </p>
          {failure !== undefined && <ErrorNote message={failure} onRetry={again} />}
          {explanation !== undefined && <Explained explanation={explanation} />}
        </Panel>
      </div>
    </PageFrame>
  );
}

/** The explanation of the text, or why there is none; the last one stays while the text is being changed. */
function useExplained(text: string) {
  const [explanation, setExplanation] = useState<Explanation>();
  const [fault, setFault] = useState<Fault>();
  const [failure, setFailure] = useState<string>();
  const [explained, setExplained] = useState<string>();
  const [round, setRound] = useState(0);
  useEffect(() => {
    const leaving = new AbortController();
    const ask = async (): Promise<void> => {
      try {
        const { signal } = leaving;
        setExplanation(await call<Explanation>("POST", "/v1/query/explain", { body: text, signal }));
        setFault(undefined);
        setFailure(undefined);
      } catch (error) {
        if (isAbort(error)) return;
        // What the text is not to blame for is no fault of it: no answer, a limit, a server that is busy.
        const isOfText = error instanceof ApiFailure && error.status === 400;
        setFault(isOfText ? { message: error.message, path: error.param } : undefined);
        setFailure(isOfText ? undefined : messageOf(error));
      }
      setExplained(text);
    };
    const timer = setTimeout(() => void ask(), waitMs);
    return () => {
      clearTimeout(timer);
      leaving.abort();
    };
  }, [text, round]);
  const again = (): void => {
    setFailure(undefined);
    setRound((known) => known + 1);
  };
  return { explanation, fault, failure, isCurrent: explained === text, again };
}

function Explained({
  explanation: { rewritten, steps, more_steps: more, plan },
}: {
  readonly explanation: Explanation;
}) {
  const { rows, isWhole } = rowsOf(rewritten);
  const rules = [...Map.groupBy(steps, ({ rule }) => rule)];
  return (
    <>
      <TreeDrawing rows={rows} isWhole={isWhole} held={heldByPath(plan)} />
      <p>
        {rules.length === 0 ? "No rule fires." : "Rules that fired: "}
        {rules.map(([rule, fired], index) => (
          <span key={rule}>
            {index > 0 && ", "}
            <code>{rule}</code>
            {fired.length > 1 && ` ${count(fired.length)} times`}
          </span>
        ))}
        {more > 0 && `, and ${count(more)} more steps`}
      </p>
    </>
  );
}

interface Outcome {
  readonly texts: readonly string[];
  readonly report?: (AnswerReport & { readonly generates?: readonly Generate[] }) | undefined;
  readonly usage?: Usage | undefined;
  readonly error?: string | undefined;
  readonly isOpen: boolean;
}

interface Generate {
  readonly path: string;
  readonly index: number;
  readonly prompt_tokens: number;
  readonly cached_tokens: number;
  readonly completion_tokens: number;
  readonly ttft_ms: number;
}

function Runner({ text }: { readonly text: string }) {
  const [outcome, setOutcome] = useState<Outcome>();
  const leaving = useRef<AbortController>(undefined);
  useEffect(() => () => leaving.current?.abort(), []);
  const isRunning = outcome?.isOpen === true;
  const run = async (): Promise<void> => {
    if (isRunning) return;
    leaving.current = new AbortController();
    const texts: string[] = [];
    setOutcome({ texts, isOpen: true });
    try {
      const { report, usage } = await answerOf({
        ...{ path: "/v1/query/execute", body: text, query: { stream: "true" } },
        signal: leaving.current.signal,
        onPart: ({ index, text: part }) => {
          texts[index] = (texts[index] ?? "") + part;
          setOutcome({ texts: [...texts], isOpen: true });
        },
      });
      setOutcome({ texts, report, usage, isOpen: false });
      say("The query has run.");
    } catch (error) {
      setOutcome({ texts, isOpen: false, error: isAbort(error) ? "Stopped." : messageOf(error) });
    }
  };
  return (
    <>
      <div class="actions">
        <button type="button" class="primary" onClick={() => void run()} aria-disabled={isRunning}>
          Run
        </button>
        {isRunning && (
          <button type="button" onClick={() => leaving.current?.abort()}>
            Stop
          </button>
        )}
      </div>
      {outcome !== undefined && <OutcomeView outcome={outcome} />}
    </>
  );
}

function OutcomeView({ outcome: { texts, report, usage, error, isOpen } }: { readonly outcome: Outcome }) {
  const citations = report?.citations ?? [];
  return (
    <div class="outcome">
      <div class="answer" aria-busy={isOpen}>
        {texts.map((text, index) => (
          <Markdown
            key={index}
            text={text}
            // Of several choices no mark tells which it is in.
            marks={texts.length === 1 ? marksOf(citations) : []}
            mark={(source) => <CitationMark source={source} within="outcome" />}
          />
        ))}
      </div>
      {error !== undefined && <ErrorNote message={error} />}
      {texts.length === 1 && <CitationList citations={citations} within="outcome" />}
      {report !== undefined && (
        <>
          <Figures
            figures={[
              { label: "Generates", value: count(report.generates?.length) },
              { label: "Prompts", value: count(usage?.prompt_tokens), note: "tokens" },
              { label: "Found", value: count(usage?.prompt_tokens_details.cached_tokens), note: "tokens" },
              { label: "First token", value: duration(report.ttft_ms) },
            ]}
          />
          <SourceBars spans={report.spans} worker={report.worker} />
        </>
      )}
    </div>
  );
}
