/** How the thinking before a request's answer is read and bounded. */
import type { ThinkingLimit } from "../../worker/contract/messages.ts";
import type { Lowerer } from "../lower/plan.ts";
import { signedBytes } from "../text/call-syntax.ts";
import type { LowerMessage } from "../text/messages.ts";
import type { ReasoningReading } from "../text/reasoning-reader.ts";
import type { ChatRequest, PromptRequest } from "./requests.ts";

export interface OpenedThinking {
  readonly reading: ReasoningReading;
  /** false: the prompt has closed the thinking, and an answer with a grammar has none. */
  readonly mayThink: boolean;
  readonly limit: ThinkingLimit | undefined;
}

type ThinkingRequest = Pick<PromptRequest, "continuesLast" | "variables"> & Pick<ChatRequest, "thinkingTokens">;

/** @returns undefined: the answer has no thinking that could be told from it */
export function openThinking(
  lowerer: Pick<Lowerer, "templateFacts" | "templateTokenIds">,
  messages: readonly LowerMessage[],
  { continuesLast, variables, thinkingTokens }: ThinkingRequest,
): OpenedThinking | undefined {
  const { reasoning: syntax } = lowerer.templateFacts;
  // An answer that has begun has its thinking behind it.
  if (syntax === undefined || continuesLast === true) return undefined;
  const hasSystem = messages.some(({ role }) => role === "system");
  const start = lowerer.templateFacts.thinkingStart(hasSystem, variables);
  if (start === undefined || start === "off") return undefined;
  const isOpen = start === "open";
  const mayThink = start !== "closed";
  const limit =
    thinkingTokens === undefined || !mayThink
      ? undefined
      : {
          opener: Uint8Array.from(isOpen ? [] : signedBytes(syntax.opener)),
          closer: Uint8Array.from(signedBytes(syntax.closer)),
          maxTokens: thinkingTokens,
          endTokenIds: lowerer.templateTokenIds(syntax.end),
        };
  return { reading: { syntax, isOpen }, mayThink, limit };
}
