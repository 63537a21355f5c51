import { basename } from "node:path";
import { type Command, CommandError, serverFlags } from "../support/command.ts";
import { connect, onlyPositional } from "../support/connect.ts";
import { askChat, type ChatAnswer, firstModelId, sourceLines } from "../support/operations.ts";

export const askCommand: Command = {
  name: "ask",
  summary: "Ask a question, from the documents of vector stores or from given files; the answer streams to stdout.",
  usage: "QUESTION [--store ID…] [--document FILE…]",
  flags: {
    ...serverFlags,
    store: { type: "string", short: "s", multiple: true, value: "ID", description: "A vector store to search." },
    document: { type: "string", short: "d", multiple: true, value: "FILE", description: "A file to answer from." },
    "max-results": { type: "string", value: "N", description: "Fragments to retrieve (the server's default)." },
    "max-tokens": { type: "string", value: "N", description: "Longest answer (256)." },
    model: { type: "string", value: "ID", description: "Model (the server's first)." },
    system: { type: "string", value: "TEXT", description: "System message." },
    stats: { type: "boolean", description: "Print times and cached tokens to stderr." },
  },
  async run(input) {
    const question = onlyPositional(input, "QUESTION");
    const client = connect(input);
    const documents = await Promise.all(input.texts("document").map(readDocument));
    const stores = input.texts("store");
    const maxResults = input.integer("max-results", { min: 1, max: 50 });
    const system = input.text("system");
    const answer = await askChat(
      client,
      {
        model: input.text("model") ?? (await firstModelId(client)),
        messages: [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: question }],
        max_tokens: input.integer("max-tokens", { min: 1, max: 131_072 }) ?? 256,
        temperature: 0,
        ...(documents.length > 0 ? { documents } : {}),
        ...(stores.length > 0
          ? { file_search: { vector_store_ids: stores, ...(maxResults ? { max_num_results: maxResults } : {}) } }
          : {}),
      },
      (text) => process.stdout.write(text),
    );
    process.stdout.write("\n");
    for (const line of sourceLines(answer.spangate)) console.error(line);
    if (input.isSet("stats")) console.error(statsLine(answer));
    return 0;
  },
};

async function readDocument(path: string): Promise<{ title: string; text: string }> {
  const bytes = await Bun.file(path)
    .bytes()
    .catch((error: unknown) => {
      throw new CommandError(`${path} cannot be read`, { cause: error });
    });
  // Only a question about files needs their readers.
  const { documentText } = await import("../../corpus/ingest/ingest.ts");
  try {
    return { title: basename(path), text: await documentText(basename(path), bytes) };
  } catch (error) {
    throw new CommandError(`${path}: ${error instanceof Error ? error.message : String(error)}`, { cause: error });
  }
}

function statsLine({ usage, spangate, clientTtftMs, totalMs }: ChatAnswer): string {
  const sources = Object.entries(Object.groupBy(spangate.spans, (span) => span.source));
  return [
    `first token ${clientTtftMs.toFixed(1)} ms`,
    `total ${totalMs.toFixed(1)} ms`,
    `prompt ${usage.prompt_tokens} tokens, ${usage.prompt_tokens_details.cached_tokens} cached`,
    `answer ${usage.completion_tokens} tokens`,
    `fragments ${sources.map(([source, spans]) => `${spans?.length ?? 0} ${source}`).join(", ") || "none"}`,
    spangate.worker,
  ].join(" · ");
}
