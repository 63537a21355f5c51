/** What the demo asks, and what it prints: its table of answers and the lines to go on with. */
import { demoAnswerTokens } from "./demo-corpora.ts";
import type { ChatAnswer } from "./support/operations.ts";
import { textTable } from "./support/text-table.ts";

export interface AskedQuestion {
  readonly question: string;
  /** Words that a right answer holds. */
  readonly expected: string;
  readonly answer: Pick<ChatAnswer, "text" | "clientTtftMs" | "usage">;
}

const fragmentsPerQuestion = 6;

/** The chat request of one question, as the demo asks it and as it prints it for curl: with other fragments the answer may differ. */
export const questionBody = (model: string, storeId: string, question: string) => ({
  model,
  messages: [{ role: "user", content: question }],
  file_search: { vector_store_ids: [storeId], max_num_results: fragmentsPerQuestion },
  temperature: 0,
  max_tokens: demoAnswerTokens,
});

export function answersTable(cold: readonly AskedQuestion[], prepared: readonly AskedQuestion[]): string {
  const rows = prepared.map(({ question, expected, answer }, index) => {
    const before = cold[index]?.answer;
    const { prompt_tokens, prompt_tokens_details } = answer.usage;
    const isRight = answer.text.includes(expected) && before?.text === answer.text;
    return [
      `  ${isRight ? "✓" : "✗"} ${question}`,
      excerpt(answer.text.trim(), expected),
      `${(before?.clientTtftMs ?? Number.NaN).toFixed(1)} ms`,
      `${answer.clientTtftMs.toFixed(1)} ms`,
      `${prompt_tokens_details.cached_tokens} of ${prompt_tokens}`,
    ];
  });
  const right = rows.filter(([question]) => question?.includes("✓")).length;
  const [coldMs, preparedMs] = [medianTtftMs(cold), medianTtftMs(prepared)];
  const header = ["    question", "answer", "TTFT cold", "TTFT prepared", "cached tokens"];
  return [
    textTable(header, rows),
    `  ${right} of ${rows.length} as expected, cold and prepared alike. Median time to first token: ${coldMs.toFixed(1)} ms cold, ` +
      `${preparedMs.toFixed(1)} ms prepared (${(coldMs / preparedMs).toFixed(1)}x).`,
  ].join("\n");
}

function medianTtftMs(asked: readonly AskedQuestion[]): number {
  const sorted = asked.map(({ answer }) => answer.clientTtftMs).sort((a, b) => a - b);
  return sorted[sorted.length >> 1] ?? Number.NaN;
}

/** So much of a sentence as the table has room for, with the words that were asked for in it. */
function excerpt(text: string, expected: string, maxChars = 68): string {
  if (text.length <= maxChars) return text;
  const end = text.indexOf(expected) + expected.length;
  if (end < maxChars) return `${text.slice(0, maxChars - 1)}…`;
  return `…${text.slice(end - maxChars + 2, end).replace(/^\S*\s/, "")}…`;
}

export function closingWords(demo: {
  readonly url: string;
  readonly adminKey: string;
  readonly model: string;
  readonly tenants: readonly {
    readonly corpus: { readonly tenant: string; readonly questions: readonly { question: string }[] };
    readonly apiKey: string;
    readonly storeId: string;
  }[];
}): string {
  const [tenant] = demo.tenants;
  const body = questionBody(demo.model, tenant?.storeId ?? "", tenant?.corpus.questions[0]?.question ?? "");
  const shellQuoted = JSON.stringify(body).replaceAll("'", "'\\''");
  return [
    `\nServing at ${demo.url} until Ctrl-C. The keys end with it.`,
    `  ${"platform key".padEnd(16)}  ${demo.adminKey}`,
    ...demo.tenants.map(
      ({ corpus, apiKey, storeId }) => `  ${corpus.tenant.padEnd(16)}  ${apiKey}  (vector store ${storeId})`,
    ),
    `\nLook at it in a browser: ${demo.url} (sign in with one of these keys).`,
    "\nAsk it yourself, in another terminal:",
    `  export SPANGATE_URL=${demo.url} SPANGATE_API_KEY=${tenant?.apiKey}`,
    `  curl -s $SPANGATE_URL/v1/chat/completions -H "Authorization: Bearer $SPANGATE_API_KEY" \\\n    -H 'Content-Type: application/json' -d '${shellQuoted}'`,
    "\nAnd from a page of your own (text, PDF, Word, …), in this folder:",
    '  npx -y bun@1.4.5 run spangate ask -d FILE "What does it say about …?"',
  ].join("\n");
}
