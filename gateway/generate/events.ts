/** What the reader of a completion is told, in order: parts of the answer, a restart, the end. */
import type { TokenLogprob } from "../../worker/contract/messages.ts";
import type { FinishedEvent } from "../dispatch/request/request.ts";

export interface TextEvent {
  readonly type: "text";
  readonly text: string;
  readonly logprobs: readonly TokenLogprob[];
}

/** A call begins: calls of a completion are counted from 0. */
export interface CallEvent {
  readonly type: "call";
  readonly call: number;
  /** Letters and digits; no other call has it. */
  readonly id: string;
  readonly name: string;
}

/** More of a call's arguments, which are JSON in the end. */
export interface ArgumentsEvent {
  readonly type: "arguments";
  readonly call: number;
  readonly text: string;
}

export type AnswerEvent = TextEvent | CallEvent | ArgumentsEvent;

export interface EndEvent {
  readonly type: "end";
  readonly reason: "stop" | "length" | "abort";
  /** Tokens up to the end of the text, those of the stop string included. */
  readonly completionTokens: number;
  /** The stop string that ended it. */
  readonly stoppedBy?: string | undefined;
  readonly report: FinishedEvent;
}

/** What came so far is void. */
export interface RestartEvent {
  readonly type: "restart";
}

export type CompletionEvent = AnswerEvent | RestartEvent | EndEvent;
