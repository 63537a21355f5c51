/**
 * The model's own chat template, rendered without content: each content is a stand-in that no user can know, so what
 * users write never reaches the template engine. A layout depends only on the roles (and the day), so it is remembered.
 * Templates look into tools and calls, so these are passed as data, in which only texts that could be read as a control
 * token are stand-ins.
 */
import { Template } from "@huggingface/jinja";
import { LRUCache } from "lru-cache";
import { ApiError } from "../base/errors.ts";
import { type CallSign, type CallSyntax, findCallSyntax } from "./call-syntax.ts";
import { MessageLayouts } from "./message-layouts.ts";
import { hasCalls, type LowerMessage, type ToolDefinition } from "./messages.ts";
import type { ModelText } from "./model-text.ts";
import { findReasoning, type ReasoningSyntax, type ThinkingStart, thinkingStart } from "./reasoning-syntax.ts";
import { StandIns } from "./stand-ins.ts";
import {
  documentLayout,
  type MessageLayout,
  messageLayout,
  probe,
  type Render,
  type TemplateMessage,
  type TemplateTool,
  type TemplateVariables,
  trimRule,
} from "./template-probe.ts";
import { controlsOf } from "./tokenizer.ts";
import { templateData } from "./tool-data.ts";

/** One part of a layout: the template's own text, the place of a message's content, or a text from a tool or a call. */
export type LayoutPart =
  | { readonly text: string }
  | { readonly contentOf: number; readonly jsonDepth: number }
  | { readonly literal: string; readonly jsonDepth: number };

export interface PromptLayout {
  /** Everything before the documents: the start of the prompt and the system messages. */
  readonly head: readonly LayoutPart[];
  /** Everything after the documents: the conversation, and the start of the assistant's answer or what it has so far. */
  readonly tail: readonly LayoutPart[];
}

/** The input from which a layout is rendered. */
interface Rendered {
  readonly messages: readonly TemplateMessage[];
  readonly tools: readonly TemplateTool[] | undefined;
  /** Texts whose stand-ins are numbered behind those of the messages' contents. */
  readonly literals: readonly string[];
  /** See `layout`. */
  readonly continuesLast: boolean;
  readonly variables: TemplateVariables;
}

const rememberedLayouts = 256;

export class ChatTemplate {
  readonly #template: Template;
  readonly #toolTemplate: Template;
  readonly #variables: Readonly<Record<string, unknown>>;
  readonly #standIns = new StandIns();
  readonly #controls: readonly string[];
  readonly #names: ReadonlySet<string>;
  readonly #layouts = new LRUCache<string, PromptLayout>({ max: rememberedLayouts });
  readonly #openings = new Map<string, MessageLayout | undefined>();
  readonly #trims = new Map<string, (content: string) => string>();
  readonly #messages = new LRUCache<string, MessageLayouts>({ max: 2 });
  readonly #thinkingStarts = new LRUCache<string, ThinkingStart>({ max: rememberedLayouts });
  /** What stands around a document's content, the same at every place in a prompt. */
  readonly document: MessageLayout;
  /** How calls are written. undefined: the template knows no tools, or writes calls in a way that cannot be read. */
  readonly calls: CallSyntax | undefined;
  /** How thinking is marked. undefined: the model marks none. */
  readonly reasoning: ReasoningSyntax | undefined;
  /** Control tokens that calls and thinking are read by. */
  readonly signs: readonly CallSign[];
  /** true: the template may show what an assistant thought before an earlier message. */
  readonly showsThinking: boolean;
  /** true: the template has a place for a system message before a question. */
  readonly takesSystem: boolean;

  /** @throws Error when the template cannot be parsed, places no document, or opens thinking that nothing ends */
  constructor(text: ModelText) {
    this.#template = new Template(text.chatTemplate);
    this.#toolTemplate = text.toolTemplate === undefined ? this.#template : new Template(text.toolTemplate);
    const { bos_token, eos_token, pad_token, unk_token } = text.config;
    this.#variables = {
      bos_token: bos_token ?? "",
      eos_token: eos_token ?? "",
      pad_token: pad_token ?? "",
      unk_token: unk_token ?? "",
    };
    this.#names = new Set([text.chatTemplate, text.toolTemplate ?? ""].flatMap(namesIn));
    const controls = controlsOf(text.tokenizer);
    this.#controls = controls.map(({ content }) => content);
    this.document = documentLayout(this.#render);
    this.calls = findCallSyntax(this.#render, controls);
    const source = [text.chatTemplate, text.toolTemplate ?? ""].join("\n");
    const found = findReasoning(source, this.messages.opening, controls, this.calls?.signs ?? []);
    this.reasoning = found?.syntax;
    this.signs = found?.signs ?? this.calls?.signs ?? [];
    this.showsThinking = /\breasoning_content\b|\.thinking\b/.test(source);
    this.takesSystem = this.#render([probe.system, probe.question], true)?.includes(probe.system.content) === true;
  }

  /**
   * @param continuesLast the last message is an answer that has begun: the prompt ends where its content does
   * @param variables wishes that the template reads
   * @throws ApiError chat_template_error when the template refuses such a row of messages
   */
  layout(
    messages: readonly LowerMessage[],
    tools: readonly ToolDefinition[] = [],
    continuesLast = false,
    variables: TemplateVariables = {},
  ): PromptLayout {
    const shows = this.showsThinking && messages.some(({ thinking }) => thinking !== undefined);
    if (shows) {
      const made = this.#layoutOf({ ...this.#toolData(messages, tools), continuesLast, variables });
      if (made !== undefined) return made;
      // Some templates refuse thinking beside a text and calls.
      return this.layout(
        messages.map((message) => ({ ...message, thinking: undefined })),
        tools,
        continuesLast,
        variables,
      );
    }
    if (tools.length > 0 || hasCalls(messages)) {
      return this.#makeLayout({ ...this.#toolData(messages, tools), continuesLast, variables });
    }
    // Some templates write today's date.
    const wishes = JSON.stringify(Object.entries(variables).sort());
    const roles = messages.map(({ role }) => role).join(" ");
    const cacheKey = `${new Date().toDateString()} ${continuesLast} ${wishes} ${roles}`;
    const cached = this.#layouts.get(cacheKey);
    if (cached !== undefined) return cached;
    const plain = messages.map(({ role }, index) => ({ role, content: this.#standIns.of(index) }));
    const made = this.#makeLayout({ messages: plain, tools: undefined, literals: [], continuesLast, variables });
    this.#layouts.set(cacheKey, made);
    return made;
  }

  /** How thinking stands where an answer to a question begins. undefined: the model marks no thinking. */
  thinkingStart(hasSystem: boolean, variables: TemplateVariables = {}): ThinkingStart | undefined {
    const { reasoning } = this;
    if (reasoning === undefined) return undefined;
    const cacheKey = `${hasSystem} ${JSON.stringify(Object.entries(variables).sort())}`;
    const cached = this.#thinkingStarts.get(cacheKey);
    if (cached !== undefined) return cached;
    const messages = hasSystem && this.takesSystem ? [probe.system, probe.question] : [probe.question];
    const prompt = this.#render(messages, true, undefined, variables) ?? "";
    const { content } = probe.question;
    const start = thinkingStart(reasoning, prompt, prompt.lastIndexOf(content) + content.length);
    this.#thinkingStarts.set(cacheKey, start);
    return start;
  }

  /** Whether the template reads a variable of this name. */
  reads(name: string): boolean {
    return this.#names.has(name);
  }

  /** Layouts of single messages, for prompts that are put together from parts. */
  get messages(): MessageLayouts {
    // Some templates write today's date.
    const day = new Date().toDateString();
    const known = this.#messages.get(day);
    if (known !== undefined) return known;
    const { bos_token: bos } = this.#variables;
    const made = new MessageLayouts(this.#render, typeof bos === "string" ? bos : "");
    this.#messages.set(day, made);
    return made;
  }

  /** The content as the template writes it: some templates remove white space around the content for some roles. */
  contentFor(role: string, content: string): string {
    return this.#trims.getOrInsertComputed(role, () => trimRule(this.#render, role))(content);
  }

  /** Renders messages with their contents as given. undefined: the template refuses the messages. */
  readonly #render: Render = (messages, addGenerationPrompt, tools, variables) => {
    const hasTools = tools !== undefined || messages.some((message) => "tool_calls" in message);
    try {
      return (hasTools ? this.#toolTemplate : this.#template).render({
        ...variables,
        ...this.#variables,
        messages,
        ...(tools === undefined ? {} : { tools }),
        add_generation_prompt: addGenerationPrompt,
      });
    } catch {
      // raise_exception and the engine's own errors look alike, and neither gives a rendering.
      return undefined;
    }
  };

  #toolData(
    messages: readonly LowerMessage[],
    tools: readonly ToolDefinition[],
  ): Omit<Rendered, "continuesLast" | "variables"> {
    const literals: string[] = [];
    const standIns = {
      content: (index: number): string => this.#standIns.of(index),
      literal: (text: string): string => this.#standIns.of(messages.length + literals.push(text) - 1),
    };
    return { ...templateData(messages, tools, this.#controls, standIns), literals };
  }

  #makeLayout(from: Rendered): PromptLayout {
    const made = this.#layoutOf(from);
    if (made === undefined) throw refusal(from.messages);
    return made;
  }

  /** undefined: the template refuses the messages. */
  #layoutOf(from: Rendered): PromptLayout | undefined {
    const { messages, tools, continuesLast, variables } = from;
    const rendered = this.#render(messages, !continuesLast, tools, variables);
    if (rendered === undefined) return undefined;
    const cut = this.#headEnd(rendered, from);
    const head = this.#parts(rendered.slice(0, cut), from);
    const whole = this.#parts(rendered.slice(cut), from);
    const tail = continuesLast ? untilContentOf(messages.length - 1, whole) : whole;
    const placed = new Set([...head, ...tail].map((part) => ("contentOf" in part ? part.contentOf : -1)));
    // Some templates leave out the text beside a call, so such a message may be missing.
    const mustStand = messages.filter((message, index) => message.tool_calls === undefined && !placed.has(index));
    return mustStand.length > 0 ? undefined : { head, tail };
  }

  /** Index in the rendering at which the first message that is not a system message begins. */
  #headEnd(rendered: string, { messages, tools, variables }: Rendered): number {
    const first = messages.findIndex((message) => message.role !== "system");
    const message = messages[first];
    if (message === undefined) return this.#prefixEnd(rendered, { messages, tools: undefined, variables }, 0);
    const beforeContent = rendered.slice(0, Math.max(0, this.#standIns.find(rendered, first)));
    const opening = this.#opening(message.role)?.before;
    if (opening !== undefined && beforeContent.endsWith(opening)) return beforeContent.length - opening.length;
    // Some templates show the tools in the first user message, before its content.
    const toolsStart = tools === undefined || opening?.trim() === "" ? -1 : beforeContent.lastIndexOf(opening ?? "\n");
    if (opening !== undefined && toolsStart > 0) return toolsStart;
    const { bos_token: bos } = this.#variables;
    const start = typeof bos === "string" && rendered.startsWith(bos) ? bos.length : 0;
    return this.#prefixEnd(rendered, { messages: messages.slice(0, first), tools, variables }, start);
  }

  /** Length of the rendering of the first messages, a prefix of the whole one unless the template looks ahead. */
  #prefixEnd(
    rendered: string,
    { messages, tools, variables }: Pick<Rendered, "messages" | "tools" | "variables">,
    otherwise: number,
  ): number {
    const before = this.#render(messages, false, tools, variables);
    const isPrefix = before !== undefined && before.length < rendered.length && rendered.startsWith(before);
    return isPrefix ? before.length : otherwise;
  }

  #opening(role: string): MessageLayout | undefined {
    if (!this.#openings.has(role)) this.#openings.set(role, messageLayout(this.#render, role));
    return this.#openings.get(role);
  }

  #parts(rendered: string, { messages, literals }: Rendered): readonly LayoutPart[] {
    return this.#standIns.split(rendered).map((part): LayoutPart => {
      if (typeof part === "string") return { text: part };
      const { index, jsonDepth } = part;
      if (index < messages.length) return { contentOf: index, jsonDepth };
      return { literal: literals[index - messages.length] ?? "", jsonDepth };
    });
  }
}

/** The names that stand in a template's code, outside of its texts, and are no fields of others. */
function namesIn(template: string): readonly string[] {
  const code = template.match(/\{[{%][\s\S]*?[%}]\}/g) ?? [];
  const bare = code.map((block) => block.replace(/'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"/g, "''"));
  return bare.flatMap((block) => block.match(/(?<![.\w])[A-Za-z_]\w*/g) ?? []);
}

/** The parts up to the last place of a message's content. Without such a place there are none. */
function untilContentOf(index: number, parts: readonly LayoutPart[]): readonly LayoutPart[] {
  const last = parts.findLastIndex((part) => "contentOf" in part && part.contentOf === index);
  return parts.slice(0, last + 1);
}

function refusal(messages: readonly TemplateMessage[]): ApiError {
  const roles = messages.map(({ role }) => role);
  const shown = roles.length <= 16 ? roles.join(", ") : `${roles.slice(0, 16).join(", ")}, …`;
  return new ApiError("chat_template_error", {
    message: `The model's chat template refuses messages with these roles in this order: ${shown}.`,
    param: "messages",
  });
}
