/** Requests of all kinds that a client keeps open while something is killed, and how each of them ended. */
import { type HttpClient, HttpError } from "../../gateway/cli/support/client.ts";

export interface Outcome {
  readonly kind: string;
  readonly startMs: number;
  readonly endMs: number;
  /** "whole", or the code of the error that it was told, or what was wrong with the answer. */
  readonly end: string;
  /** Longest time without a sign of the answer: from sending to the first token, between tokens, to the end. */
  readonly silentMs: number;
  readonly text: string;
}

interface Chunk {
  readonly error?: { readonly code: string };
  readonly choices?: readonly {
    readonly delta?: { readonly content?: string | null };
    readonly message?: { readonly content: string };
    readonly finish_reason?: string | null;
  }[];
  readonly usage?: { readonly completion_tokens: number } | null;
}

/** One request that can be sent again and again, and always has the same answer. */
export interface RequestKind {
  readonly kind: string;
  readonly path: string;
  readonly stream: boolean;
  readonly answerTokens: number;
  readonly body: object;
}

/**
 * What is open longer than this was forgotten. A request lives through eight deaths at most (`limits.deaths`); each costs
 * it `limits.restartMaxMs` of back-off, the start of a worker and the time until the next kill, 2.7 s on idle cores: 22 s in
 * all. This leaves a start five seconds, where other work slows it down.
 */
const forgottenMs = 60_000;

export async function send(client: HttpClient, request: RequestKind): Promise<Outcome> {
  const { kind, path, stream, answerTokens, body } = request;
  const startMs = performance.now();
  const seen = { text: "", tokens: 0, finish: "", done: !stream };
  let [lastMs, silentMs] = [startMs, 0];
  const sign = (): void => {
    const nowMs = performance.now();
    silentMs = Math.max(silentMs, nowMs - lastMs);
    lastMs = nowMs;
  };
  const outcome = (end: string): Outcome => {
    sign();
    return { kind, startMs, endMs: lastMs, end, silentMs, text: seen.text };
  };
  const take = ({ choices = [], usage }: Chunk): void => {
    const [choice] = choices;
    seen.text += choice?.delta?.content ?? choice?.message?.content ?? "";
    seen.finish = choice?.finish_reason ?? seen.finish;
    seen.tokens = usage?.completion_tokens ?? seen.tokens;
  };
  const signal = AbortSignal.timeout(forgottenMs);
  try {
    if (!stream) take(await client.json<Chunk>("POST", path, body, signal));
    else {
      for await (const { data } of client.events("POST", path, body, signal)) {
        if (data === "[DONE]") {
          seen.done = true;
          break;
        }
        const chunk = JSON.parse(data) as Chunk;
        if (chunk.error !== undefined) return outcome(chunk.error.code);
        sign();
        take(chunk);
      }
    }
  } catch (error) {
    if (error instanceof HttpError) return outcome(error.code);
    return outcome(signal.aborted ? "forgotten" : `cut: ${error instanceof Error ? error.message : String(error)}`);
  }
  if (!seen.done) return outcome("cut: no [DONE]");
  const isWhole = seen.finish === "length" && seen.tokens === answerTokens;
  return outcome(isWhole ? "whole" : `${seen.tokens} of ${answerTokens} tokens, ${seen.finish}`);
}

const facts = (subject: number): string =>
  Array.from(
    { length: 8 },
    (_, index) => `The extension of person ${subject}-${index} is ${subject * 8 + index}. `,
  ).join("");

const user = (content: string) => [{ role: "user", content }];

/** The n-th of the requests: streamed and whole, with and without documents, with much to read, and span queries. */
export function requestOf(model: string, n: number): RequestKind {
  const subject = Math.floor(n / 5) % 12;
  const exactly = (tokens: number) => {
    return { model, temperature: 0, max_tokens: tokens, min_tokens: tokens, ignore_eos: true };
  };
  const chat = (kind: string, tokens: number, fields: object, stream: boolean): RequestKind => {
    const streamed = stream ? { stream: true, stream_options: { include_usage: true } } : {};
    const body = { ...exactly(tokens), ...fields, ...streamed };
    return { kind, path: "/v1/chat/completions", stream, answerTokens: tokens, body };
  };
  const documents = [0, 1, 2].map((offset) => ({ text: facts((subject + offset) % 12) }));
  switch (n % 5) {
    case 0:
      return chat("stream", 96, { messages: user(`Tell me all about person ${subject}.`) }, true);
    case 1:
      return chat("whole", 24, { messages: user(`Who is person ${subject}?`) }, false);
    case 2:
      return chat("stream over documents", 32, { messages: user(`Which extension has ${subject}?`), documents }, true);
    case 3:
      return chat("long prompt", 8, { messages: user(facts(subject).repeat(8)) }, true);
    default: {
      const { model: name, ...options } = exactly(12);
      const g = (input: object) => ({ g: { model: name, ...options, input } });
      const parts = documents.map(({ text }) => g({ seq: [{ user: text }, { user: "Repeat it." }] }));
      const body = g({ seq: [{ plus: parts }, { user: `Which extension has ${subject}?` }] });
      // All generations count.
      const answerTokens = 12 * (parts.length + 1);
      return { kind: "span query", path: "/v1/query/execute", stream: false, answerTokens, body };
    }
  }
}
