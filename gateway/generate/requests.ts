/** What the APIs ask of the pipeline: requests, checked and with their defaults filled in. */
import type { GenerateParams } from "../../worker/contract/messages.ts";
import type { RetentionTime } from "../../worker/contract/owners.ts";
import type { HybridWeights } from "../corpus/search/retrieve.ts";
import type { LowerMessage } from "../lower/plan.ts";
import type { AnswerFormat } from "../tools/answer-rules.ts";
import type { ToolUse } from "../tools/tool-use.ts";
import type { PromptDocument } from "./plan-documents.ts";

export interface FileSearch {
  readonly vectorStoreIds: readonly string[];
  readonly maxResults: number;
  readonly filters?: unknown;
  readonly scoreThreshold?: number | undefined;
  readonly weights?: HybridWeights | undefined;
}

/** What a prompt is made of. */
export interface PromptRequest {
  readonly model: string;
  readonly messages: readonly LowerMessage[];
  /** undefined: none is shown, and none is called. */
  readonly tools?: ToolUse | undefined;
  readonly documents: readonly PromptDocument[];
  readonly fileSearch: FileSearch | undefined;
  readonly cacheSalt: string | undefined;
  readonly attention: "span" | "full";
}

/** How an answer is drawn; how long it may be, and what it has to be, is known later. */
export type AnswerParams = Omit<GenerateParams, "maxTokens" | "grammar">;

/** A chat request, checked and with its defaults filled in. */
export interface ChatRequest extends PromptRequest {
  /** undefined: as many as the context has room for. */
  readonly maxTokens: number | undefined;
  readonly params: AnswerParams;
  /** What an answer has to be where it is no call; undefined: any text. */
  readonly format: AnswerFormat | undefined;
  readonly choiceCount: number;
  readonly stops: readonly string[];
  readonly cacheKey: string | undefined;
  readonly reuse: boolean;
  /** How long its KV is to be kept after this use; absent: as long as there is room. */
  readonly retention?: RetentionTime | undefined;
  /** The answer is to tell why KV was not found. */
  readonly diagnose: boolean;
}

/** A text-completion request, checked and with its defaults filled in. */
export interface TextRequest extends Omit<ChatRequest, Exclude<keyof PromptRequest, "model" | "cacheSalt"> | "format"> {
  readonly prompts: readonly (string | readonly number[])[];
}
