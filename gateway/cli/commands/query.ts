import { piecesOf, type SpangateReport, textsOf, type Usage } from "../../client/answers.ts";
import type { SpanQueryClient } from "../../client/span-query-client.ts";
import { ChoiceWriter } from "../support/choice-writer.ts";
import { type Command, CommandError, serverFlags, UsageError } from "../support/command.ts";
import { queryFlags, readQueryFile, withServer } from "../support/query-file.ts";

export const queryCommand: Command = {
  name: "query",
  summary: "Run a span query from a JSON or YAML file; the answer goes to stdout, several choices one after the other.",
  usage: "FILE|- [--stream|--json]",
  flags: {
    ...serverFlags,
    ...queryFlags,
    stream: { type: "boolean", description: "Write text as it comes (when stdout is a terminal)." },
    json: { type: "boolean", description: "Write the server's whole answer as JSON." },
    stats: { type: "boolean", description: "Print times and cached tokens to stderr." },
  },
  async run(input) {
    if (input.isSet("json") && input.isSet("stream")) throw new UsageError("--json and --stream exclude each other");
    const query = await readQueryFile(input);
    const isStreamed = !input.isSet("json") && (input.isSet("stream") || process.stdout.isTTY === true);
    const write = (text: string) => void process.stdout.write(text);
    const facts = await withServer(input, (client) =>
      isStreamed ? writeStreamed(client, query, write) : writeWhole(client, query, input.isSet("json"), write),
    );
    if (input.isSet("stats")) console.error(statsLines(facts).join("\n"));
    return 0;
  },
};

interface Facts {
  readonly usage: Usage;
  readonly spangate: SpangateReport;
}

async function writeStreamed(client: SpanQueryClient, query: string, write: (text: string) => void): Promise<Facts> {
  const choices = new ChoiceWriter(write);
  let facts: Facts | undefined;
  for await (const chunk of client.stream(query)) {
    for (const { index, text, isLast } of piecesOf(chunk)) {
      choices.add(index, text);
      if (isLast) choices.end(index);
    }
    const { usage, spangate } = chunk;
    if (usage && spangate) facts = { usage, spangate };
  }
  write("\n");
  if (facts === undefined) throw new CommandError("the answer came without its usage");
  return facts;
}

async function writeWhole(
  client: SpanQueryClient,
  query: string,
  asJson: boolean,
  write: (text: string) => void,
): Promise<Facts> {
  const answer = await client.execute(query);
  if (asJson) {
    write(`${JSON.stringify(answer, null, 2)}\n`);
    return answer;
  }
  const choices = new ChoiceWriter(write);
  for (const [index, text] of textsOf(answer).entries()) {
    choices.add(index, text);
    choices.end(index);
  }
  write("\n");
  return answer;
}

/** One line for the query, one for each of its generations. */
function statsLines({ usage, spangate }: Facts): readonly string[] {
  const { tokens, computed_tokens } = spangate.prepared;
  const total = [
    `first token ${spangate.ttft_ms.toFixed(1)} ms`,
    `prompt ${usage.prompt_tokens} tokens, ${usage.prompt_tokens_details.cached_tokens} cached`,
    `answer ${usage.completion_tokens} tokens`,
    `prepared ${tokens} tokens, ${computed_tokens} computed`,
    ...(spangate.blend ? [`blended ${spangate.blend.tokens}, ${spangate.blend.recomputed_tokens} computed again`] : []),
    spangate.worker,
  ];
  const generates = spangate.generates.map((run) =>
    [
      `${run.path} #${run.index}`,
      `prompt ${run.prompt_tokens} tokens, ${run.cached_tokens} cached`,
      `answer ${run.completion_tokens} tokens (${run.finish_reason})`,
      `first token ${run.ttft_ms.toFixed(1)} ms`,
    ].join(" · "),
  );
  return [total.join(" · "), ...generates];
}
