/** A conversation over a corpus: answers with their sources, and what of each prompt was computed. */
import { useEffect, useRef, useState } from "preact/hooks";
import { type AnswerReport, answerOf, type Usage } from "../answers/chat.ts";
import { CitationList, CitationMark, marksOf } from "../answers/citations.tsx";
import { Markdown } from "../answers/markdown.tsx";
import { SourceBars } from "../answers/sources.tsx";
import { get, isAbort, messageOf } from "../kit/api.ts";
import { say } from "../kit/feedback.tsx";
import { count, duration } from "../kit/format.ts";
import { visible } from "../kit/name.tsx";
import { ErrorNote, Figures, Page as PageFrame, Panel } from "../kit/parts.tsx";
import { useList } from "../kit/resource.ts";
import { goTo, linkTo, route } from "../kit/router.ts";
import { may } from "../kit/session.ts";
import { WaterfallOf } from "../traces/trace-view.tsx";

interface Corpus {
  readonly id: string;
  readonly name: string;
  readonly status: string;
}

interface Turn {
  readonly question: string;
  readonly answer: string;
  readonly thinking: string;
  readonly report?: AnswerReport | undefined;
  readonly usage?: Usage | undefined;
  readonly error?: string | undefined;
  readonly isOpen: boolean;
}

/** In the address: no corpus, the model alone. */
const alone = "none";
/** Earlier turns that go into the prompt; older ones stay on the page alone. */
const mostTurnsInPrompt = 8;

export function Page() {
  const corpora = useList<Corpus>(may("corpus:read") ? "/v1/vector_stores" : undefined);
  const usable = corpora.rows.filter(({ status }) => status !== "expired");
  const [turns, setTurns] = useState<readonly Turn[]>([]);
  const leaving = useRef<AbortController>(undefined);
  useEffect(() => () => leaving.current?.abort(), []);
  // Who has documents asks them: unless the address says another, the latest corpus.
  const named = route.value.query.get("corpus");
  const corpus = named === alone ? "" : (named ?? usable[0]?.id ?? "");
  const isWithoutAny = !corpora.isLoading && corpora.error === undefined && usable.length === 0;
  const isAnswering = turns.at(-1)?.isOpen === true;

  const ask = async (question: string): Promise<void> => {
    if (isAnswering) return;
    leaving.current = new AbortController();
    const change = (by: (turn: Turn) => Turn): void =>
      setTurns((known) => known.map((turn, index) => (index === known.length - 1 ? by(turn) : turn)));
    setTurns((known) => [...known, { question, answer: "", thinking: "", isOpen: true }]);
    try {
      const { signal } = leaving.current;
      // A server has one model.
      const { data } = await get<{ readonly data: readonly { readonly id: string }[] }>("/v1/models", {}, signal);
      const { report, usage } = await answerOf({
        path: "/v1/chat/completions",
        body: bodyOf(data[0]?.id ?? "", corpus, [...turns, { question, answer: "" }]),
        signal,
        onPart: ({ text, thinking }) =>
          change((turn) => ({ ...turn, answer: turn.answer + text, thinking: turn.thinking + thinking })),
      });
      change((turn) => ({ ...turn, report, usage, isOpen: false }));
      say("The answer is there.");
    } catch (error) {
      change((turn) => ({ ...turn, isOpen: false, error: isAbort(error) ? "Stopped." : messageOf(error) }));
    }
  };
  const last = turns.findLast(({ report }) => report !== undefined);
  return (
    <PageFrame
      title="Ask"
      about="Answers from a corpus, with the sentence that each rests on."
      actions={
        <button type="button" onClick={() => setTurns([])} aria-disabled={isAnswering}>
          New conversation
        </button>
      }
    >
      {corpora.error !== undefined && <ErrorNote message={corpora.error} onRetry={corpora.reload} />}
      <div class="ask">
        <Panel title="Conversation" actions={<CorpusChoice corpora={usable} chosen={corpus} />}>
          <div class="turns">
            {turns.length === 0 && <FirstWords corpus={corpus} isWithoutAny={isWithoutAny} />}
            {turns.map((turn, index) => (
              <TurnView key={index} turn={turn} within={`turn-${index}`} />
            ))}
          </div>
          <QuestionForm
            isBusy={isAnswering}
            isWaiting={named === null && corpora.isLoading}
            onAsk={ask}
            onStop={() => leaving.current?.abort()}
          />
        </Panel>
        <AnswerFacts turn={last} />
      </div>
    </PageFrame>
  );
}

/** @param isWithoutAny there is no corpus that could be chosen */
function FirstWords({ corpus, isWithoutAny }: { readonly corpus: string; readonly isWithoutAny: boolean }) {
  if (corpus !== "") return <p class="soft">Ask something that the documents of the corpus answer.</p>;
  if (!isWithoutAny || !may("corpus:write")) return <p class="soft">The model answers by itself, without documents.</p>;
  return (
    <p class="soft">
      There is no corpus yet: <a href={linkTo("corpora")}>make one and drop files into it</a>. Until then the model
      answers by itself.
    </p>
  );
}

function bodyOf(model: string, corpus: string, turns: readonly Pick<Turn, "question" | "answer">[]): object {
  const messages = turns
    .slice(-mostTurnsInPrompt)
    .flatMap(({ question, answer }) => [
      { role: "user", content: question },
      ...(answer === "" ? [] : [{ role: "assistant", content: answer }]),
    ]);
  const search = corpus === "" ? {} : { file_search: { vector_store_ids: [corpus] } };
  return { model, messages, ...search, temperature: 0, stream: true, stream_options: { include_usage: true } };
}

function CorpusChoice({ corpora, chosen }: { readonly corpora: readonly Corpus[]; readonly chosen: string }) {
  return (
    <label class="corpus-choice">
      Corpus{" "}
      <select
        value={chosen}
        onChange={({ currentTarget: { value } }) =>
          goTo(linkTo("ask", [], { corpus: value === "" ? alone : value }), true)
        }
      >
        <option value="">none: the model alone</option>
        {corpora.map(({ id, name }) => (
          <option key={id} value={id} selected={id === chosen}>
            {visible(name) || id}
          </option>
        ))}
      </select>
    </label>
  );
}

interface QuestionFormProps {
  readonly isBusy: boolean;
  /** It is not known yet which corpus is asked: what is sent meanwhile goes off as soon as it is. */
  readonly isWaiting: boolean;
  readonly onAsk: (question: string) => Promise<void>;
  readonly onStop: () => void;
}

function QuestionForm({ isBusy, isWaiting, onAsk, onStop }: QuestionFormProps) {
  const field = useRef<HTMLTextAreaElement>(null);
  const [isWanted, setWanted] = useState(false);
  const send = (): void => {
    const { current } = field;
    const question = current?.value.trim() ?? "";
    if (current === null || question === "" || isBusy) return;
    setWanted(isWaiting);
    if (isWaiting) return;
    current.value = "";
    void onAsk(question);
  };
  useEffect(() => {
    if (isWanted && !isWaiting) send();
  }, [isWanted, isWaiting]);
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <div class="field">
        <label for="question">Question</label>
        <textarea
          id="question"
          ref={field}
          rows={3}
          maxLength={32_000}
          aria-describedby="question-hint"
          onKeyDown={(event) => {
            if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
            event.preventDefault();
            send();
          }}
        />
        <p class="hint" id="question-hint">
          Ctrl+Enter sends it.
        </p>
      </div>
      <div class="actions">
        <button type="submit" class="primary" aria-disabled={isBusy || isWanted}>
          Ask
        </button>
        {isBusy && (
          <button type="button" onClick={onStop}>
            Stop
          </button>
        )}
      </div>
    </form>
  );
}

function TurnView({ turn, within }: { readonly turn: Turn; readonly within: string }) {
  const citations = turn.report?.citations ?? [];
  return (
    <article class="turn">
      <p class="question plain-text">{turn.question}</p>
      {turn.thinking !== "" && (
        <details>
          <summary>What it thought</summary>
          <p class="plain-text soft">{turn.thinking}</p>
        </details>
      )}
      <div class="answer" aria-busy={turn.isOpen}>
        <Markdown
          text={turn.answer}
          marks={marksOf(citations)}
          mark={(source) => <CitationMark source={source} within={within} />}
        />
        {turn.isOpen && turn.answer === "" && <p class="soft">Answering …</p>}
      </div>
      {turn.error !== undefined && <ErrorNote message={turn.error} />}
      <CitationList citations={citations} within={within} />
    </article>
  );
}

function AnswerFacts({ turn }: { readonly turn: Turn | undefined }) {
  if (turn?.report === undefined) {
    return (
      <Panel title="Fragments">
        <p class="soft">What of the prompt was found and what was computed stands here once there is an answer.</p>
      </Panel>
    );
  }
  const { report, usage } = turn;
  const names = new Map(report.retrieved?.map(({ id, filename }) => [id, filename]));
  const cached = usage?.prompt_tokens_details.cached_tokens;
  return (
    <div class="answer-facts">
      <Figures
        figures={[
          { label: "First token", value: duration(report.ttft_ms) },
          { label: "Prompt", value: count(usage?.prompt_tokens), note: `tokens, ${count(cached)} found` },
          { label: "Answer", value: count(usage?.completion_tokens), note: "tokens" },
        ]}
      />
      <Panel title="Fragments">
        <SourceBars spans={report.spans} nameOf={(id) => names.get(id)} worker={report.worker} />
      </Panel>
      <Panel title="Time" actions={<a href={linkTo("overview", [report.request_id])}>The whole request</a>}>
        <WaterfallOf id={report.request_id} key={report.request_id} />
      </Panel>
    </div>
  );
}
