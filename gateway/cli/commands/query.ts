import { type Explanation, piecesOf, type SpangateReport, textsOf, type Usage } from "../../client/answers.ts";
import type { SpanQueryClient } from "../../client/span-query-client.ts";
import { type Command, CommandError, serverFlags, UsageError } from "../support/command.ts";
import { sourceLines } from "../support/operations.ts";
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
    if (!input.isSet("json")) for (const line of sourceLines(facts.spangate)) console.error(line);
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

/** Makes one line for the query and one for each of its generations. */
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

export const explainCommand: Command = {
  name: "explain",
  summary: "Show what a span query becomes, how long its parts are and what of them is held; runs nothing.",
  usage: "FILE|- [--svg OUT]",
  flags: {
    ...serverFlags,
    ...queryFlags,
    svg: { type: "string", value: "OUT", description: "Write the drawing of the rewritten query to a file." },
    "svg-before": { type: "string", value: "OUT", description: "Write the drawing of the query as it is to a file." },
    json: { type: "boolean", description: "Write the server's whole answer as JSON, plans and block keys included." },
  },
  async run(input) {
    const query = await readQueryFile(input);
    const explanation = await withServer(input, (client) => client.explain(query));
    const { before, after } = explanation.drawing;
    await writeSvg(input.text("svg"), after.svg);
    await writeSvg(input.text("svg-before"), before.svg);
    const isJson = input.isSet("json");
    process.stdout.write(isJson ? `${JSON.stringify(explanation, null, 2)}\n` : textOf(explanation));
    return 0;
  },
};

function textOf({ steps, drawing }: Explanation): string {
  const rules = steps.map(({ rule, path }) => `  ${rule}  ${path}`);
  const section = (title: string, text: string) => `${title}\n${text}\n`;
  return [
    section("Query", drawing.before.text),
    section("Rules", rules.join("\n") || "  none applies"),
    section("Rewritten", drawing.after.text),
  ].join("\n");
}

async function writeSvg(path: string | undefined, svg: string): Promise<void> {
  if (path === undefined) return;
  try {
    await Bun.write(path, svg);
  } catch (error) {
    throw new CommandError(`${path} cannot be written`, { cause: error });
  }
}

/** Writes choices that arrive side by side one after the other: text of a choice that is not shown yet waits. */
export class ChoiceWriter {
  readonly #write: (text: string) => void;
  readonly #waiting = new Map<number, string>();
  readonly #ended = new Set<number>();
  /** The choice that is shown, and the last whose heading was written; the first has none. */
  #shown = 0;
  #headed = 0;

  constructor(write: (text: string) => void) {
    this.#write = write;
  }

  add(index: number, text: string): void {
    if (text === "") return;
    if (index === this.#shown) this.#put(text);
    else this.#waiting.set(index, (this.#waiting.get(index) ?? "") + text);
  }

  /** The choice is complete: the next is shown. */
  end(index: number): void {
    this.#ended.add(index);
    while (this.#ended.has(this.#shown)) {
      this.#shown += 1;
      this.#put(this.#waiting.get(this.#shown) ?? "");
    }
  }

  #put(text: string): void {
    if (text === "") return;
    if (this.#headed < this.#shown) this.#write(`\n\n--- ${this.#shown + 1} ---\n`);
    this.#headed = this.#shown;
    this.#write(text);
  }
}
