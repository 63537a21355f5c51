/** Anthropic's messages as turns of a conversation: what tools answered are turns of their own. */
import type { LowerMessage } from "../../text/messages.ts";
import type { Path, Refuse } from "../generation/tool-schemas.ts";
import { type Block, blocksOf, type Message, textOf } from "./blocks.ts";

type ToolUse = Extract<Block, { type: "tool_use" }>;
type ToolResult = Extract<Block, { type: "tool_result" }>;

/** Uses of the message before, by their ids. */
type OpenUses = Map<string, { readonly name: string; readonly path: Path }>;

/** Every use of a tool is answered in the message that follows it, and nothing else is. */
export function checkToolUses(messages: readonly Message[], refuse: Refuse): void {
  let open: OpenUses = new Map();
  const refuseOpen = (): void => {
    for (const { path } of open.values()) refuse(path, "has no tool_result in the message that follows");
  };
  for (const [index, message] of messages.entries()) {
    const next: OpenUses = new Map();
    for (const [at, block] of blocksOf(message).entries()) {
      const path = ["messages", index, "content", at];
      if (block.type === "tool_use") {
        if (next.has(block.id)) refuse([...path, "id"], "another tool_use has this id");
        next.set(block.id, { name: block.name, path });
      }
      if (block.type !== "tool_result") continue;
      if (!open.delete(block.tool_use_id))
        refuse([...path, "tool_use_id"], "is the id of no tool_use in the message before");
    }
    refuseOpen();
    open = next;
  }
  refuseOpen();
}

/** Turns of messages that were checked. Neighbours of one role are one turn. */
export function turnsOf(messages: readonly Message[], system: readonly LowerMessage[]): readonly LowerMessage[] {
  const names = new Map<string, string>();
  const turns = messages.flatMap((message): readonly LowerMessage[] => {
    const { role, content } = message;
    const blocks = blocksOf(message);
    const uses = blocks.filter((block): block is ToolUse => block.type === "tool_use");
    const results = blocks.filter((block): block is ToolResult => block.type === "tool_result");
    for (const { id, name } of uses) names.set(id, name);
    if (uses.length > 0) {
      const calls = uses.map(({ id, name, input }) => ({ id, name, arguments: input }));
      return [{ role, content: textOf(content), calls }];
    }
    const answered = results.map((result): LowerMessage => {
      const { tool_use_id: id } = result;
      return { role: "tool", content: resultText(result), answers: { id, name: names.get(id) ?? "" } };
    });
    const text = textOf(content);
    return results.length > 0 && text === "" ? answered : [...answered, { role, content: text }];
  });
  return joined([...system, ...turns]);
}

/** A part without text (its documents stand elsewhere) adds nothing to its turn. */
function joined(messages: readonly LowerMessage[]): readonly LowerMessage[] {
  const turns: LowerMessage[] = [];
  const isPlain = ({ calls, answers }: LowerMessage): boolean => calls === undefined && answers === undefined;
  for (const message of messages) {
    const turn = turns.at(-1);
    if (turn?.role !== message.role || !isPlain(turn) || !isPlain(message)) {
      turns.push(message);
      continue;
    }
    const isBoth = turn.content !== "" && message.content !== "";
    // Added, not joined: a thousand texts that are copied for each that follows are gigabytes.
    turns[turns.length - 1] = { role: turn.role, content: turn.content + (isBoth ? "\n\n" : "") + message.content };
  }
  return turns;
}

/** What a tool found as documents is told by its title: the documents stand where all do. */
function resultText({ content = "", is_error: isError }: ToolResult): string {
  const found =
    typeof content === "string"
      ? []
      : content.flatMap((block) => (block.type === "text" ? [] : [`Found: ${block.title ?? "a document"}`]));
  const text = [textOf(content), ...found].filter((line) => line !== "").join("\n");
  return isError === true ? `Error: ${text}` : text;
}
