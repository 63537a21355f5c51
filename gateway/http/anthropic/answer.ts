/** The JSON of Anthropic's messages: whole answers, stream events, usage. */
import type { EndEvent } from "../../generate/events.ts";
import type { ChatRun } from "../../generate/pipeline.ts";
import type { Choice } from "../generation/choice.ts";
import type { ChoiceCitations } from "../generation/citations.ts";
import type { ForEachEvent } from "../generation/completion.ts";
import { type ComparedPrompt, comparePrompt, messageDiagnostics } from "../generation/prompt-diagnostics.ts";
import { spangateOf } from "../generation/report.ts";
import type { SseStream } from "../transport/sse.ts";
import { type CitableBlocks, messageCitations } from "./citations.ts";

export interface MessageParts {
  readonly requestId: string;
  readonly run: ChatRun;
  readonly choice: Choice;
  /** How long the request asked that the cached prompt stays; undefined: it did not ask. */
  readonly ttl: "5m" | "1h" | undefined;
  /** The answer may have calls of tools. */
  readonly callsTools: boolean;
  /** What of the request the answer may cite. */
  readonly citable: CitableBlocks;
  readonly citations: ChoiceCitations;
  /** The answer becomes a line of a batch's file. */
  readonly isBatchLine: boolean;
  /** undefined: it is not asked for. */
  readonly comparing: ComparedPrompt | undefined;
}

export async function wholeMessage(parts: MessageParts) {
  const { choice } = parts;
  const text = { type: "text", text: choice.text, citations: cites(parts) ? await citationsOf(parts) : null };
  const uses = choice.calls.map((call) => ({ ...useOf(call.id, call.name), input: inputOf(call.arguments) }));
  const thought = choice.thinking === "" ? [] : [thinkingBlock(choice.thinking)];
  return {
    ...messageOf(parts),
    diagnostics: diagnosticsOf(parts),
    content: [...thought, ...(uses.length > 0 && choice.text === "" ? uses : [text, ...uses])],
    ...stopOf(choice),
    usage: { ...finalUsage(parts), ...fixedUsage },
    spangate: await spangateWithCitations(parts),
  };
}

/** From message_start to message_stop. */
export async function writeMessage(stream: SseStream, forEachEvent: ForEachEvent, parts: MessageParts): Promise<void> {
  const { run, choice } = parts;
  const write: WriteEvent = (type, fields = {}) =>
    stream.event({ event: type, data: JSON.stringify({ type, ...fields }) });
  await write("message_start", {
    message: { ...messageOf(parts), content: [], ...stopOf(undefined), usage: usageBeforeEnd(run) },
  });
  const blocks = new BlockWriter(write, parts);
  // Where tools may be called, an answer may have no text.
  if (!parts.callsTools && !run.thinks) await blocks.openText();
  await write("ping");
  await forEachEvent(async (event) => {
    if (event.type === "thinking") await blocks.thinking(event.text);
    else if (event.type === "text" && event.text !== "") await blocks.text(event.text);
    else if (event.type === "call") await blocks.open(useOf(event.id, event.name));
    else if (event.type === "arguments") {
      await blocks.delta({ type: "input_json_delta", partial_json: event.text });
    }
  });
  if (stream.closed) return;
  await blocks.end();
  await write("message_delta", {
    delta: { ...stopOf(choice), container: null },
    usage: finalUsage(parts),
    diagnostics: diagnosticsOf(parts),
    spangate: await spangateWithCitations(parts),
  });
  await write("message_stop");
}

async function spangateWithCitations(parts: MessageParts) {
  const { requestId, run, choice, citations } = parts;
  await citations.find();
  return spangateOf(requestId, run, endsOf(choice), citations.bodies(parts));
}

type WriteEvent = (type: string, fields?: object) => Promise<void>;

/** Writes an answer's blocks one after the other. */
class BlockWriter {
  readonly #write: WriteEvent;
  readonly #parts: MessageParts;
  #index = -1;
  #type: string | undefined;
  #cites: boolean;

  constructor(write: WriteEvent, parts: MessageParts) {
    this.#write = write;
    this.#parts = parts;
    this.#cites = cites(parts);
  }

  async open(block: { readonly type: string }): Promise<void> {
    await this.#close();
    this.#index += 1;
    this.#type = block.type;
    await this.#write("content_block_start", { index: this.#index, content_block: block });
  }

  async openText(): Promise<void> {
    const citations = cites(this.#parts) ? [] : null;
    await this.open({ type: "text", ...{ text: "", citations } });
  }

  async thinking(thinking: string): Promise<void> {
    if (this.#type !== "thinking") await this.open(thinkingBlock(""));
    await this.delta({ type: "thinking_delta", thinking });
  }

  async text(text: string): Promise<void> {
    if (this.#type !== "text") await this.openText();
    await this.delta({ type: "text_delta", text });
  }

  async delta(delta: object): Promise<void> {
    await this.#write("content_block_delta", { index: this.#index, delta });
  }

  /** An answer has a block of text or of a call at least. */
  async end(): Promise<void> {
    if (this.#type === undefined || this.#type === "thinking") await this.openText();
    await this.#close();
  }

  async #close(): Promise<void> {
    if (this.#type === undefined) return;
    if (this.#type === "text" && this.#cites) {
      // The first block of text gets all citations.
      this.#cites = false;
      for (const citation of await citationsOf(this.#parts)) await this.delta({ type: "citations_delta", citation });
    }
    if (this.#type === "thinking") {
      const { signature } = thinkingBlock(this.#parts.choice.thinking);
      await this.delta({ type: "signature_delta", signature });
    }
    await this.#write("content_block_stop", { index: this.#index });
  }
}

/**
 * Clients send the block back with its signature, and some drop a block without one. It is a digest of the text, and is
 * not looked at: thinking is the caller's own text, like everything else of an earlier answer.
 */
function thinkingBlock(thinking: string) {
  const signature = thinking === "" ? "" : new Bun.CryptoHasher("sha256").update(thinking).digest("base64");
  return { type: "thinking" as const, thinking, signature };
}

const useOf = (id: string, name: string) => {
  return { type: "tool_use", id: `toolu_${id}`, name, input: {}, caller: { type: "direct" } };
};

/** Arguments of a call that was cut off are no JSON: the input is then empty. */
function inputOf(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return {};
  }
}

export const messageIdOf = (requestId: string): string => `msg_${requestId}`;

function messageOf({ requestId, run, comparing }: MessageParts) {
  const { model } = run;
  // A stream begins before it is known what will be found in the cache: Anthropic's clients read this as pending.
  const diagnostics = comparing?.earlierId === undefined ? null : { cache_miss_reason: null };
  const id = messageIdOf(requestId);
  return { id, type: "message", role: "assistant", model, container: null, diagnostics };
}

function diagnosticsOf({ comparing, run, choice }: MessageParts) {
  return comparing === undefined ? null : messageDiagnostics(comparePrompt(comparing, run, choice));
}

/** Whether citations are told: where blocks ask for them, and for what `file_search` found. */
const cites = ({ citable, run }: MessageParts): boolean => citable.sources.length + run.retrieved.length > 0;

const citationsOf = async (parts: MessageParts): Promise<readonly object[]> =>
  messageCitations(await parts.citations.find(), parts.citable, parts, parts.run.retrieved);

/** @param choice undefined while the answer is generated */
function stopOf(choice: Choice | undefined) {
  return { stop_reason: stopReasonOf(choice), stop_sequence: choice?.end?.stoppedBy ?? null, stop_details: null };
}

function stopReasonOf(choice: Choice | undefined): string | null {
  if (choice?.end === undefined) return null;
  if (choice.end.reason === "length") return "max_tokens";
  if (choice.end.stoppedBy !== undefined) return "stop_sequence";
  return choice.calls.length > 0 ? "tool_use" : "end_turn";
}

const endsOf = ({ end }: Choice): readonly EndEvent[] => (end === undefined ? [] : [end]);

const fixedUsage = { inference_geo: null, service_tier: "standard", speed: null };

/** How much of the prompt was found in the cache is known at the end: until then it is null, and input_tokens is the whole prompt. */
function usageBeforeEnd(run: ChatRun) {
  const unknown = { cache_creation: null, cache_creation_input_tokens: null, cache_read_input_tokens: null };
  const none = { output_tokens_details: null, server_tool_use: null };
  return { input_tokens: run.promptTokens, ...unknown, output_tokens: 0, ...none, ...fixedUsage };
}

/** As in Anthropic's API, input_tokens is the part of the prompt that was neither read from the cache nor written to it. */
function finalUsage({ run, choice, ttl }: MessageParts) {
  const { promptTokens = run.promptTokens, cachedTokens = 0, cacheWriteTokens = 0 } = choice.end?.report.usage ?? {};
  return {
    input_tokens: promptTokens - cachedTokens - cacheWriteTokens,
    cache_creation_input_tokens: cacheWriteTokens,
    cache_read_input_tokens: cachedTokens,
    cache_creation: {
      ephemeral_5m_input_tokens: ttl === "1h" ? 0 : cacheWriteTokens,
      ephemeral_1h_input_tokens: ttl === "1h" ? cacheWriteTokens : 0,
    },
    output_tokens: choice.end?.completionTokens ?? 0,
    output_tokens_details: null,
    server_tool_use: null,
  };
}
