/**
 * How a chat template writes each message of a prompt that is put together from parts: what stands around the content
 * of a role wherever the message stands, what the template writes before the first message (the start-of-text token, a
 * default system message), and how it opens the answer. All of this is found out by rendering probes, as in
 * template-probe.ts.
 */
import { type MessageLayout, probe, type Render, split, type TemplateMessage } from "./template-probe.ts";

/** The start of a prompt whose first message has a given role: `prefix`, then the message in this layout. */
export interface PromptStart {
  readonly prefix: string;
  readonly first: MessageLayout;
}

const next = { role: "user", content: "\uE000probe-next\uE001" };
const answer = { role: "assistant", content: "\uE000probe-answer\uE001" };

type Rows = readonly (readonly TemplateMessage[])[];

export class MessageLayouts {
  readonly #render: Render;
  readonly #bos: string;
  readonly #inside = new Map<string, MessageLayout | undefined>();
  readonly #starts = new Map<string, PromptStart | undefined>();
  /** Rows of messages; a message is probed behind each row. */
  readonly #rows: Rows;
  /** Text that opens the answer to a question. "": there is none. undefined: it depends on the messages before. */
  readonly opening: string | undefined;

  /** @param bos text of the start-of-text token; "" where there is none */
  constructor(render: Render, bos: string) {
    this.#render = render;
    this.#bos = bos;
    const { system, question } = probe;
    const alone = render([system], false);
    // A template that writes the system message into the first user message is probed without a system message.
    const hasSystem = alone === undefined || alone.includes(system.content);
    const rows = [[question], [question, answer]];
    this.#rows = hasSystem ? [[system], ...rows, ...rows.map((row) => [system, ...row])] : rows;
    this.opening = this.#findOpening();
  }

  /**
   * Layout of a message that is not the prompt's first. undefined: the template refuses the role in every place, or
   * writes it in a way that depends on its neighbours.
   */
  inside(role: string): MessageLayout | undefined {
    if (!this.#inside.has(role)) this.#inside.set(role, this.#probeInside(role));
    return this.#inside.get(role);
  }

  /** Start of a prompt whose first message is of this role. undefined: the template refuses it. */
  start(role: string): PromptStart | undefined {
    if (!this.#starts.has(role)) this.#starts.set(role, this.#probeStart(role));
    return this.#starts.get(role);
  }

  /**
   * A template that writes an answer otherwise when nothing comes behind it (Qwen3: with an empty thinking) is probed
   * with a question behind all, as prompts have it.
   */
  #probeInside(role: string): MessageLayout | undefined {
    const alone = this.#probeRows(role, this.#rows, (messages) => this.#render(messages, false));
    if (alone !== undefined) return alone;
    const rows = this.#rows.filter((row) => !row.includes(answer));
    const question = this.#probeRows("user", rows, (messages) => this.#render(messages, false));
    return question && this.#probeRows(role, this.#rows, (messages) => this.#beforeQuestion(messages, question));
  }

  /** Messages as they are written before a question. "": the question is not written as it is elsewhere. */
  #beforeQuestion(messages: readonly TemplateMessage[], layout: MessageLayout): string | undefined {
    const whole = this.#render([...messages, next], false);
    const question = layout.before + next.content + layout.after;
    return whole?.endsWith(question) ? whole.slice(0, whole.length - question.length) : whole && "";
  }

  /** A message's layout behind each of these rows; undefined unless it is the same behind all that are taken. */
  #probeRows(
    role: string,
    rows: Rows,
    render: (messages: readonly TemplateMessage[]) => string | undefined,
  ): MessageLayout | undefined {
    const found: (MessageLayout | undefined)[] = [];
    for (const row of rows) {
      const before = render(row);
      const whole = render([...row, { role, content: probe.content }]);
      if (before === undefined || whole === undefined) continue;
      const layout = whole.startsWith(before) ? split(whole.slice(before.length), role) : undefined;
      const isOwn = layout !== undefined && row.every(({ content }) => !layout.before.includes(content));
      found.push(isOwn ? layout : undefined);
    }
    const [layout] = found;
    const isAlike = found.every((one) => one?.before === layout?.before && one?.after === layout?.after);
    return isAlike ? layout : undefined;
  }

  #probeStart(role: string): PromptStart | undefined {
    const whole = this.#renderFirst(role);
    const found = whole === undefined ? undefined : split(whole, role);
    if (found === undefined) return undefined;
    const inside = this.inside(role);
    if (inside !== undefined && found.after === inside.after && found.before.endsWith(inside.before)) {
      return { prefix: found.before.slice(0, found.before.length - inside.before.length), first: inside };
    }
    const prefix = found.before.startsWith(this.#bos) ? this.#bos : "";
    return { prefix, first: { ...found, before: found.before.slice(prefix.length) } };
  }

  /** Renders the first message alone. undefined: it is refused, or it differs when a question follows. */
  #renderFirst(role: string): string | undefined {
    const first = { role, content: probe.content };
    const alone = this.#render([first], false);
    const followed = this.#render([first, probe.question], false);
    if (alone !== undefined) return followed === undefined || followed.startsWith(alone) ? alone : undefined;
    const user = this.inside("user");
    if (followed === undefined || user === undefined) return undefined;
    const question = user.before + probe.question.content + user.after;
    return followed.endsWith(question) ? followed.slice(0, followed.length - question.length) : undefined;
  }

  #findOpening(): string | undefined {
    const openings = new Set<string | undefined>();
    for (const row of this.#rows.filter((messages) => messages.at(-1) === probe.question)) {
      const before = this.#render(row, false);
      const whole = this.#render(row, true);
      if (before === undefined || whole === undefined) continue;
      openings.add(whole.startsWith(before) ? whole.slice(before.length) : undefined);
    }
    const [opening] = openings;
    return openings.size === 1 ? opening : undefined;
  }
}
