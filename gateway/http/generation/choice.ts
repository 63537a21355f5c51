/** Collects one choice of an answer from the events of its run. */
import type { TokenLogprob } from "../../../worker/contract/messages.ts";
import type { CompletionEvent, EndEvent } from "../../generate/events.ts";

export interface MadeCall {
  /** Letters and digits; APIs put their own prefixes before it. */
  readonly id: string;
  readonly name: string;
  /** JSON, unless the answer was cut off. */
  arguments: string;
}

export interface Choice {
  /** What the model thought before it answered. */
  thinking: string;
  text: string;
  /** How many calls came before the text began. */
  textAt: number;
  readonly calls: MadeCall[];
  readonly logprobs: TokenLogprob[];
  end: EndEvent | undefined;
}

export function emptyChoices(count: number): readonly Choice[] {
  return Array.from(
    { length: count },
    (): Choice => ({ thinking: "", text: "", textAt: 0, calls: [], logprobs: [], end: undefined }),
  );
}

export const endsOf = (choices: readonly Choice[]): readonly EndEvent[] =>
  choices.flatMap((choice) => (choice.end === undefined ? [] : [choice.end]));

export function finishReasonOf(reason: EndEvent["reason"] | undefined, callCount = 0): string {
  if (reason === "length") return "length";
  return callCount > 0 ? "tool_calls" : "stop";
}

export function collect(choice: Choice | undefined, event: CompletionEvent): void {
  if (choice === undefined) throw new Error("an event of a choice that was not asked for");
  if (event.type === "end") {
    choice.end = event;
    return;
  }
  if (event.type === "thinking") {
    choice.thinking += event.text;
    return;
  }
  if (event.type === "restart") {
    choice.thinking = "";
    choice.text = "";
    choice.calls.length = 0;
    choice.logprobs.length = 0;
    return;
  }
  if (event.type === "call") {
    choice.calls.push({ id: event.id, name: event.name, arguments: "" });
    return;
  }
  if (event.type === "arguments") {
    const call = choice.calls[event.call];
    if (call === undefined) throw new Error("arguments of a call that has not begun");
    call.arguments += event.text;
    return;
  }
  if (choice.text === "" && event.text !== "") choice.textAt = choice.calls.length;
  choice.text += event.text;
  choice.logprobs.push(...event.logprobs);
}
