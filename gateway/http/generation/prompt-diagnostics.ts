/** Explains why less of the prompt cache was used than an earlier prompt had filled, in the words of OpenAI's and Anthropic's packages. */
import type { TenantId } from "../../../db/ids.ts";
import type { ChatRun } from "../../generate/pipeline.ts";
import type { Comparison, PromptFacts, PromptHistory } from "../../generate/prompt-history.ts";
import type { ChatRequest } from "../../generate/requests.ts";
import type { Choice } from "./choice.ts";

type Part = "tools" | "system" | "documents";

/** A prompt that is compared with an earlier one. */
export interface ComparedPrompt {
  readonly compared: PromptHistory;
  readonly tenantId: TenantId;
  /** Id of its own answer, by which a later request names it. */
  readonly id: string;
  /** Id of the earlier answer; undefined: the prompt is compared with none. */
  readonly earlierId: string | undefined;
  readonly request: ChatRequest;
}

/** Called when the answer is whole. @returns undefined when there is nothing to compare with */
export function comparePrompt(
  { compared, tenantId, id, earlierId, request }: ComparedPrompt,
  run: ChatRun,
  choice: Choice,
): Comparison<Part> | undefined {
  const usage = choice.end?.report.usage;
  if (usage === undefined) return undefined;
  const facts = factsOf(request, run);
  const comparison = earlierId === undefined ? undefined : compared.compare(tenantId, earlierId, facts, usage);
  compared.note(tenantId, id, facts, usage);
  return comparison;
}

/** `diagnostics` of a message; null: nothing of the cache was missed. */
export function messageDiagnostics(comparison: Comparison<Part> | undefined) {
  if (comparison === undefined) return null;
  if (!comparison.found) return { cache_miss_reason: { type: "previous_message_not_found" } };
  if (comparison.missedTokens === 0) return null;
  if (comparison.changed === undefined) return { cache_miss_reason: { type: "unavailable" } };
  const types = {
    tools: "tools_changed",
    system: "system_changed",
    documents: messagesChanged,
    turns: messagesChanged,
  };
  const type = types[comparison.changed];
  return { cache_miss_reason: { type, cache_missed_input_tokens: comparison.missedTokens } };
}

const messagesChanged = "messages_changed";

/** `prompt_cache_diagnostics` of a response. */
export function responseDiagnostics(comparison: Comparison<Part>) {
  if (!comparison.found) return { type: "comparison_response_not_found" };
  if (comparison.missedTokens === 0) return { type: "cache_hit" };
  if (comparison.changed === undefined) return { type: "unavailable" };
  return {
    type: "cache_miss",
    reason: comparison.changed === "tools" ? "tools_changed" : "input_changed",
    cache_missed_tokens: comparison.missedTokens,
    comparison_reusable_tokens: comparison.reusableTokens,
  };
}

function factsOf(request: ChatRequest, run: ChatRun): PromptFacts<Part> {
  const { messages } = request;
  const firstTurn = messages.findIndex(({ role }) => role !== "system");
  const turns = firstTurn < 0 ? [] : messages.slice(firstTurn);
  const system = messages.slice(0, messages.length - turns.length);
  // The prompt shows all tools; which of them may be called is no part of it.
  const tools = request.tools?.tools.map(({ name, description, parameters }) => [name, description, parameters]);
  const shown = [...run.documents.map(({ title, text }) => [title, text]), ...run.retrieved.map(({ id }) => id)];
  return { parts: { tools, system, documents: shown }, turns };
}
