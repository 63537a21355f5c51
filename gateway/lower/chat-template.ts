/**
 * The model's own chat template, rendered without content: each content is a stand-in that no user can know, so
 * what users write never reaches the template engine. A layout depends on the roles (and the day), so it is remembered.
 */
import { Template } from "@huggingface/jinja";
import { LRUCache } from "lru-cache";
import { ApiError } from "../errors.ts";
import { MessageLayouts } from "./message-layouts.ts";
import type { ModelText } from "./model-text.ts";
import { documentLayout, type MessageLayout, messageLayout, type Render, trimRule } from "./template-probe.ts";

/** The template's own text, or the place of a message's content. */
export type LayoutPart = { readonly text: string } | { readonly contentOf: number };

export interface PromptLayout {
  /** From the start to the end of the system messages: what stands before the documents. */
  readonly head: readonly LayoutPart[];
  /** The conversation, and the start of the assistant's answer. */
  readonly tail: readonly LayoutPart[];
}

const rememberedLayouts = 256;

export class ChatTemplate {
  readonly #template: Template;
  readonly #variables: Readonly<Record<string, unknown>>;
  readonly #nonce = crypto.randomUUID();
  readonly #layouts = new LRUCache<string, PromptLayout>({ max: rememberedLayouts });
  readonly #openings = new Map<string, MessageLayout | undefined>();
  readonly #trims = new Map<string, (content: string) => string>();
  readonly #messages = new LRUCache<string, MessageLayouts>({ max: 2 });
  /** How one document stands in the prompt, wherever it stands. */
  readonly document: MessageLayout;

  /** @throws Error when the template cannot be parsed or places no document */
  constructor(text: ModelText) {
    this.#template = new Template(text.chatTemplate);
    const { bos_token, eos_token, pad_token, unk_token } = text.config;
    this.#variables = {
      bos_token: bos_token ?? "",
      eos_token: eos_token ?? "",
      pad_token: pad_token ?? "",
      unk_token: unk_token ?? "",
    };
    this.document = documentLayout(this.#render);
  }

  /** @throws ApiError chat_template_error when the template refuses such a row of roles */
  layout(roles: readonly string[]): PromptLayout {
    // Some templates write today's date.
    const cacheKey = `${new Date().toDateString()} ${roles.join(" ")}`;
    const cached = this.#layouts.get(cacheKey);
    if (cached !== undefined) return cached;
    const made = this.#makeLayout(roles);
    this.#layouts.set(cacheKey, made);
    return made;
  }

  /** How messages stand in a prompt that is put together from parts. */
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

  /** The content as the template writes it: some templates trim it, for some roles. */
  contentFor(role: string, content: string): string {
    let trim = this.#trims.get(role);
    if (trim === undefined) {
      trim = trimRule(this.#render, role);
      this.#trims.set(role, trim);
    }
    return trim(content);
  }

  /** The template over messages whose contents are given as they are. undefined: it refuses them. */
  readonly #render: Render = (messages, addGenerationPrompt) => {
    try {
      return this.#template.render({
        ...this.#variables,
        messages: messages.map(({ role, content }) => ({ role, content })),
        add_generation_prompt: addGenerationPrompt,
      });
    } catch {
      // raise_exception and the engine's own errors look alike: either way there is no rendering.
      return undefined;
    }
  };

  #makeLayout(roles: readonly string[]): PromptLayout {
    const messages = roles.map((role, index) => ({ role, content: this.#standIn(index) }));
    const rendered = this.#render(messages, true);
    if (rendered === undefined) throw refusal(roles);
    const cut = this.#headEnd(rendered, messages);
    const head = this.#parts(rendered.slice(0, cut));
    const tail = this.#parts(rendered.slice(cut));
    const placed = new Set([...head, ...tail].map((part) => ("contentOf" in part ? part.contentOf : -1)));
    if (roles.some((_, index) => !placed.has(index))) throw refusal(roles);
    return { head, tail };
  }

  /** Where the first message that is not a system message begins. */
  #headEnd(rendered: string, messages: readonly { role: string; content: string }[]): number {
    const first = messages.findIndex((message) => message.role !== "system");
    const message = messages[first];
    if (message === undefined) return this.#prefixEnd(rendered, messages, 0);
    const beforeContent = rendered.slice(0, rendered.indexOf(message.content));
    const opening = this.#opening(message.role)?.before;
    if (opening !== undefined && beforeContent.endsWith(opening)) return beforeContent.length - opening.length;
    const { bos_token: bos } = this.#variables;
    const start = typeof bos === "string" && rendered.startsWith(bos) ? bos.length : 0;
    return this.#prefixEnd(rendered, messages.slice(0, first), start);
  }

  /** The rendering of the first messages is a prefix of the whole one, unless the template looks ahead. */
  #prefixEnd(rendered: string, first: readonly { role: string; content: string }[], otherwise: number): number {
    const before = this.#render(first, false);
    const isPrefix = before !== undefined && before.length < rendered.length && rendered.startsWith(before);
    return isPrefix ? before.length : otherwise;
  }

  #opening(role: string): MessageLayout | undefined {
    if (!this.#openings.has(role)) this.#openings.set(role, messageLayout(this.#render, role));
    return this.#openings.get(role);
  }

  #standIn(index: number): string {
    return `\uE000${this.#nonce}:${index}\uE001`;
  }

  #parts(rendered: string): readonly LayoutPart[] {
    const pattern = new RegExp(`\uE000${this.#nonce}:(\\d+)\uE001`);
    return rendered
      .split(pattern)
      .map((part, index): LayoutPart => (index % 2 === 1 ? { contentOf: Number(part) } : { text: part }))
      .filter((part) => !("text" in part) || part.text !== "");
  }
}

function refusal(roles: readonly string[]): ApiError {
  const shown = roles.length <= 16 ? roles.join(", ") : `${roles.slice(0, 16).join(", ")}, …`;
  return new ApiError("chat_template_error", {
    message: `The model's chat template refuses messages with these roles in this order: ${shown}.`,
    param: "messages",
  });
}
