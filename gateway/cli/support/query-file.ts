/** A span query from a file, and the client that takes it to the server. */
import { SpanQueryClient } from "../../client/span-query-client.ts";
import { QueryError } from "../../query/errors.ts";
import { parseQueryText } from "../../query/parse.ts";
import { canonicalText } from "../../query/print.ts";
import { checkedUrl, commandErrors } from "./client.ts";
import { CommandError, type CommandInput, type Flag, UsageError } from "./command.ts";
import { onlyPositional, serverOf } from "./connect.ts";

export const queryFlags: Readonly<Record<string, Flag>> = {
  format: { type: "string", short: "f", value: "json|yaml", description: "Instead of what the name ends in (json)." },
};

/** @returns JSON that the server reads. @throws CommandError naming the path of what is wrong */
export async function readQueryFile(input: CommandInput): Promise<string> {
  const path = onlyPositional(input, "FILE");
  const format = formatOf(path, input.text("format"));
  const name = path === "-" ? "stdin" : path;
  const text = await textOf(path, name);
  try {
    return canonicalText(parseQueryText(text, format));
  } catch (error) {
    if (error instanceof QueryError) throw new CommandError(`${name}: ${error.message}`);
    throw error;
  }
}

function formatOf(path: string, given: string | undefined): "json" | "yaml" {
  if (given === undefined) return /\.ya?ml$/i.test(path) ? "yaml" : "json";
  if (given === "json" || given === "yaml") return given;
  throw new UsageError(`--format must be json or yaml, not "${given}"`);
}

async function textOf(path: string, name: string): Promise<string> {
  try {
    return await (path === "-" ? Bun.stdin : Bun.file(path)).text();
  } catch (error) {
    throw new CommandError(`${name} cannot be read`, { cause: error });
  }
}

/** Runs work against the server that the flags name. @throws CommandError with the server's words */
export const withServer = <Result>(
  input: CommandInput,
  work: (client: SpanQueryClient) => Promise<Result>,
): Promise<Result> => {
  const access = serverOf(input);
  return work(new SpanQueryClient({ ...access, url: checkedUrl(access.url) }, commandErrors(access)));
};
