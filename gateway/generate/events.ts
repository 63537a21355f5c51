/** What the reader of a completion receives, in order: parts of the answer, a restart, the end. */
import type { TokenLogprob } from "../../worker/contract/messages.ts";
import type { FinishedEvent } from "../dispatch/request/request.ts";

/** A piece of what the model thinks before it answers. */
export interface ThinkingEvent {
  readonly type: "thinking";
  readonly text: string;
}

export interface TextEvent {
  readonly type: "text";
  readonly text: string;
  readonly logprobs: readonly TokenLogprob[];
}

/** A tool call begins. The calls of a completion are numbered from 0. */
export interface CallEvent {
  readonly type: "call";
  readonly call: number;
  /** Letters and digits; unique to this call. */
  readonly id: string;
  readonly name: string;
}

/** The next piece of a call's arguments. All pieces together are JSON. */
export interface ArgumentsEvent {
  readonly type: "arguments";
  readonly call: number;
  readonly text: string;
}

export type AnswerEvent = ThinkingEvent | TextEvent | CallEvent | ArgumentsEvent;

export interface EndEvent {
  readonly type: "end";
  readonly reason: "stop" | "length" | "abort";
  /** Tokens up to the end of the text, including those of the stop string. */
  readonly completionTokens: number;
  /** How many of them are thinking, its marks included. */
  readonly reasoningTokens: number;
  /** The stop string that ended the completion. */
  readonly stoppedBy?: string | undefined;
  readonly report: FinishedEvent;
}

/** The events so far are void: the completion is generated anew. */
export interface RestartEvent {
  readonly type: "restart";
}

export type CompletionEvent = AnswerEvent | RestartEvent | EndEvent;
