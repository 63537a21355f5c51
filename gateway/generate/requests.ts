/** The requests that the APIs give to the pipeline, checked and with their defaults filled in. */
import type { GenerateParams, SamplingParams } from "../../worker/contract/messages.ts";
import type { SamplingDefaults } from "../../worker/contract/model-card.ts";
import type { RetentionTime } from "../../worker/contract/owners.ts";
import type { HybridWeights } from "../corpus/search/retrieve.ts";
import type { LowerMessage } from "../lower/plan.ts";
import type { TemplateVariables } from "../text/template-probe.ts";
import type { AnswerFormat } from "../tools/answer-rules.ts";
import type { ToolUse } from "../tools/tool-use.ts";
import type { RequestDocument } from "./plan-documents.ts";
import type { SparseWish } from "./sparse.ts";

export interface FileSearch {
  readonly vectorStoreIds: readonly string[];
  readonly maxResults: number;
  readonly filters?: unknown;
  readonly scoreThreshold?: number | undefined;
  readonly weights?: HybridWeights | undefined;
  readonly rerank?: boolean | undefined;
}

/** What a prompt is made of. */
export interface PromptRequest {
  readonly model: string;
  readonly messages: readonly LowerMessage[];
  /** The last message is an answer that has begun, and the new one goes on from it; it has text and no calls. */
  readonly continuesLast?: boolean;
  /** Wishes that the model's chat template may read. */
  readonly variables?: TemplateVariables;
  /** The tools that the prompt shows and the answer may call; undefined: none. */
  readonly tools?: ToolUse | undefined;
  readonly documents: readonly RequestDocument[];
  readonly fileSearch: FileSearch | undefined;
  readonly cacheSalt: string | undefined;
  readonly attention: "span" | "full";
}

/** How an answer is sampled, where the request says it; what it leaves open the model's folder decides, or `samplingOf`. */
export type AskedSampling = Omit<SamplingParams, keyof SamplingDefaults> & {
  readonly [Name in keyof SamplingDefaults]: SamplingDefaults[Name] | undefined;
};

/** How an answer is generated. Its length and its grammar are decided later. */
export type AnswerParams = Omit<GenerateParams, "maxTokens" | "grammar" | "sampling"> & {
  readonly sampling: AskedSampling;
};

/** A chat request, checked and with its defaults filled in. */
export interface ChatRequest extends PromptRequest {
  /** The most tokens of the answer; undefined: as many as fit in the context. */
  readonly maxTokens: number | undefined;
  readonly params: AnswerParams;
  /** The most tokens of thinking before the answer, which are among `maxTokens`; absent: as many as the model takes. */
  readonly thinkingTokens?: number | undefined;
  /** The format of the answer where it is not a tool call; undefined: any text. */
  readonly format: AnswerFormat | undefined;
  readonly choiceCount: number;
  readonly stops: readonly string[];
  readonly cacheKey: string | undefined;
  readonly reuse: boolean;
  /** Whether rows of the answer may choose what they read; absent: as the server has it. */
  readonly sparse?: SparseWish | undefined;
  /** How long the request's KV is kept after this use; absent: as long as there is space. */
  readonly retention?: RetentionTime | undefined;
  /** Whether the answer reports why KV was not found. */
  readonly diagnose: boolean;
}

/** A text-completion request, checked and with its defaults filled in. */
export interface TextRequest extends Omit<ChatRequest, Exclude<keyof PromptRequest, "model" | "cacheSalt"> | "format"> {
  readonly prompts: readonly (string | readonly number[])[];
}
