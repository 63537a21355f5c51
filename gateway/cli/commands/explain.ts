import type { Explanation } from "../../client/answers.ts";
import { type Command, CommandError, serverFlags } from "../support/command.ts";
import { queryFlags, readQueryFile, withServer } from "../support/query-file.ts";

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
