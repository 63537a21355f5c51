/**
 * Finds out how a chat template writes one message, by rendering probes and comparing the results. A template is a
 * program, and nothing declares what it does to a message.
 */
import type { JsonObject } from "./messages.ts";

export type Render = (
  messages: readonly TemplateMessage[],
  addGenerationPrompt: boolean,
  tools?: readonly TemplateTool[],
  variables?: TemplateVariables,
) => string | undefined;

/** Wishes of the caller that a template reads, such as `enable_thinking`. Texts are single words. */
export type TemplateVariables = Readonly<Record<string, boolean | number | string | readonly string[]>>;

/** A message in the form that templates read. */
export interface TemplateMessage {
  readonly role: string;
  readonly content: string;
  /** What the assistant thought before this message, under the two names that templates know. */
  readonly reasoning_content?: string;
  readonly thinking?: string;
  readonly tool_calls?: readonly TemplateCall[];
  readonly tool_call_id?: string;
  readonly name?: string;
}

export interface TemplateCall {
  readonly id: string;
  readonly type: "function";
  readonly function: { readonly name: string; readonly arguments: JsonObject };
}

export interface TemplateTool {
  readonly type: "function";
  readonly function: JsonObject;
}

/** What the template writes around a message's content. */
export interface MessageLayout {
  readonly role: string;
  readonly before: string;
  readonly after: string;
}

const system = { role: "system", content: "\uE000probe-system\uE001" };
const question = { role: "user", content: "\uE000probe-question\uE001" };
const contentA = "\uE000probe-a\uE001";
const contentB = "\uE000probe-b\uE001";

/** Messages with unique contents for other probes; `split` finds the one with `content`. */
export const probe = { system, question, content: contentA } as const;

/** Rows of messages that a probed message follows. Some templates take no system message, so one row is empty. */
const openings = [[system], []];

/**
 * Layout of a message of this role behind the system message. undefined: the template refuses the role, drops it, or
 * writes the messages before it otherwise because of it.
 */
export function messageLayout(render: Render, role: string): MessageLayout | undefined {
  for (const opening of openings) {
    const base = render(opening, false);
    const rendered = render([...opening, { role, content: contentA }], false);
    if (base === undefined || rendered === undefined || !rendered.startsWith(base)) continue;
    const layout = split(rendered.slice(base.length), role);
    // Some templates write the system message into the first user message: the layout would then contain it.
    if (layout !== undefined && !layout.before.includes(system.content)) return layout;
  }
  return undefined;
}

/**
 * Layout of a document. It is a message of role `document` where the template takes any role and writes each message
 * the same at every place, and else a message of role `user`.
 * @throws Error when the template writes neither in a way that does not depend on its neighbours
 */
export function documentLayout(render: Render): MessageLayout {
  const document = messageLayout(render, "document");
  if (document !== undefined && writesAlike(render, document)) return document;
  const user = messageLayout(render, "user");
  if (user !== undefined) return user;
  throw new Error("the chat template writes no message in a way that does not depend on its neighbours");
}

/** Whether two documents and a question are rendered exactly as each is alone. */
function writesAlike(render: Render, layout: MessageLayout): boolean {
  const user = messageLayout(render, "user");
  const { role, before, after } = layout;
  return openings.some((opening) => {
    const base = render(opening, false);
    const messages = [...opening, { role, content: contentA }, { role, content: contentB }];
    const rendered = render([...messages, { role: "user", content: contentA }], false);
    if (base === undefined || user === undefined) return false;
    const documents = before + contentA + after + before + contentB + after;
    return rendered === base + documents + user.before + contentA + user.after;
  });
}

const spaces = [" ", "\t", "\n", "\r"];

/** Finds out which white space the template removes from both ends of a content of this role. */
export function trimRule(render: Render, role: string): (content: string) => string {
  const contexts = [...openings, [system, question], [question]];
  // Whole renderings are compared: the template's own text around the content may end in the same white space.
  const kept = (content: string): boolean =>
    contexts.some((context) => {
      const bare = render([...context, { role, content: contentA }], false);
      return bare !== undefined && bare.replace(contentA, content) === render([...context, { role, content }], false);
    });
  const dropped = (wrap: (space: string) => string): string => spaces.filter((space) => !kept(wrap(space))).join("");
  if (!kept(contentA)) return (content) => content;
  const atStart = dropped((space) => space + contentA);
  const atEnd = dropped((space) => contentA + space);
  return (content) => trimEndOf(trimStartOf(content, atStart), atEnd);
}

function trimStartOf(content: string, dropped: string): string {
  if (dropped.length === spaces.length) return content.trimStart();
  let start = 0;
  while (start < content.length && dropped.includes(content.charAt(start))) start += 1;
  return content.slice(start);
}

function trimEndOf(content: string, dropped: string): string {
  if (dropped.length === spaces.length) return content.trimEnd();
  let end = content.length;
  while (end > 0 && dropped.includes(content.charAt(end - 1))) end -= 1;
  return content.slice(0, end);
}

/** Cuts the rendering of one message around `probe.content`. undefined: the content is not in it. */
export function split(message: string, role: string): MessageLayout | undefined {
  const at = message.indexOf(contentA);
  if (at < 0) return undefined;
  return { role, before: message.slice(0, at), after: message.slice(at + contentA.length) };
}
