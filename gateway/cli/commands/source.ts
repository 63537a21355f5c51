/** `spangate source`: web sites and buckets that the server itself reads into a vector store. */
import { isS3 } from "../../sources/source-url.ts";
import { countsText } from "../../sources/sync-run.ts";
import type { HttpClient } from "../support/client.ts";
import { type Command, CommandError, type CommandInput, serverFlags, UsageError } from "../support/command.ts";
import { connect, requiredText } from "../support/connect.ts";
import { listAll, type Source } from "../support/operations.ts";
import { s3AccessOf, s3Flags } from "../support/s3-keys.ts";
import { textTable } from "../support/text-table.ts";

const pollMs = 300;

export const sourceCommand: Command = {
  name: "source",
  summary: "Web sites and S3 buckets that the server reads into a vector store by itself: add, list, run and remove.",
  usage: "add URL --store ID [--every 6h] | list --store ID | run ID | remove ID",
  flags: {
    ...serverFlags,
    store: { type: "string", short: "s", value: "ID", description: "The vector store." },
    as: { type: "string", value: "NAME", description: "For add: what the store calls the source (by its URL)." },
    every: {
      type: "string",
      value: "TIME",
      description: "For add: how often it is read, as in 30m, 6h or 7d (only when it is asked to).",
    },
    "max-pages": { type: "string", value: "N", description: "For add: pages of a web site that are read (1000)." },
    "max-depth": { type: "string", value: "N", description: "For add: links from a web site's first page on (8)." },
    ...s3Flags,
    background: { type: "boolean", description: "For add and run: do not wait until it has been read." },
  },
  async run(input) {
    const [action, argument, extra] = input.positionals;
    if (extra !== undefined) throw new UsageError(`unexpected argument "${extra}"`);
    if (action === "list" && argument === undefined) {
      const client = connect(input);
      printList(await listAll<Source>(client, storePath(input)));
      return 0;
    }
    if (argument === undefined || (action !== "add" && action !== "run" && action !== "remove")) {
      throw new UsageError("say one of: add URL --store ID, list --store ID, run ID, remove ID");
    }
    const client = connect(input);
    const path = `/admin/v1/sources/${encodeURIComponent(argument)}`;
    if (action === "remove") {
      await client.json("DELETE", path);
      console.log(`removed ${argument}; its files stay in the vector store`);
      return 0;
    }
    const source = await (action === "run" ? client.json<Source>("POST", `${path}/run`) : add(input, client, argument));
    if (action === "add") console.log(source.id);
    return input.isSet("background") ? 0 : await follow(client, source);
  },
};

const storePath = (input: CommandInput): string =>
  `/admin/v1/vector_stores/${encodeURIComponent(requiredText(input, "store"))}/sources`;

/** S3 keys come from the environment, as S3 programs have them. */
async function add(input: CommandInput, client: HttpClient, url: string): Promise<Source> {
  const access = isS3(url) ? s3AccessOf(input) : undefined;
  if (isS3(url) && access === undefined) throw new CommandError("set S3_ACCESS_KEY_ID and S3_SECRET_ACCESS_KEY");
  if (access?.sessionToken !== undefined) {
    throw new CommandError("the server needs keys that last: S3_SESSION_TOKEN belongs to keys that end");
  }
  return await client.json<Source>("POST", storePath(input), {
    url,
    name: input.text("as"),
    interval_minutes: minutesOf(input.text("every")),
    max_pages: input.integer("max-pages", { min: 1, max: 10_000 }),
    max_depth: input.integer("max-depth", { min: 0, max: 100 }),
    s3: access && {
      endpoint: access.endpoint,
      region: access.region,
      access_key_id: access.accessKeyId,
      secret_access_key: access.secretAccessKey,
    },
  });
}

const minutesIn: Readonly<Record<string, number>> = { m: 1, h: 60, d: 1_440 };

/** `6h` as minutes. The server says how often it may be. @throws UsageError */
function minutesOf(given: string | undefined): number | undefined {
  if (given === undefined) return undefined;
  const [, count = "", unit = ""] = /^([1-9]\d{0,8})([mhd])$/.exec(given) ?? [];
  const minutes = Number(count) * (minutesIn[unit] ?? 0);
  if (minutes > 0) return minutes;
  throw new UsageError(`--every ${given}: say minutes, hours or days, as in 30m, 6h or 7d`);
}

/** Waits until the source has been read, and says how that went. */
async function follow(client: HttpClient, begun: Source): Promise<number> {
  let source = begun;
  while (source.status !== "idle") {
    await Bun.sleep(pollMs);
    source = await client.json<Source>("GET", `/admin/v1/sources/${source.id}`);
  }
  const { last_run: run } = source;
  if (run === null) throw new CommandError("it was not read");
  if (run.error !== null) throw new CommandError(`${source.url} could not be read: ${run.error}`);
  for (const { path, reason } of run.failures) console.error(`${path}: ${reason}`);
  if (!run.is_whole) console.error(`${source.name} was not read whole, so nothing of it is taken out`);
  console.log(countsText(run));
  return run.failed === 0 ? 0 : 1;
}

function printList(sources: readonly Source[]): void {
  const timeOf = (unixS: number): string => `${new Date(unixS * 1000).toISOString().slice(0, 16)}Z`;
  const rows = sources.map(({ id, name, status, interval_minutes: minutes, last_run: run }) => [
    ...[id, name, status, minutes === null ? "when asked" : `${minutes} min`],
    ...[run === null ? "-" : timeOf(run.ended_at), run === null ? "-" : (run.error ?? countsText(run))],
  ]);
  console.log(textTable(["id", "name", "status", "every", "last read", "outcome"], rows));
}
