import { existsSync, statSync } from "node:fs";
import { basename } from "node:path";
import { type Command, CommandError, serverFlags, UsageError } from "../support/command.ts";
import { connect, onlyPositional } from "../support/connect.ts";
import { addFile, prepareStore, type VectorStore, waitForFile } from "../support/operations.ts";
import { Progress } from "../support/progress.ts";

export const ingestCommand: Command = {
  name: "ingest",
  summary: "Upload text and Markdown files and ingest them into a vector store; prints the store's id.",
  usage: "FILE… (--store ID | --new NAME)",
  flags: {
    ...serverFlags,
    store: { type: "string", short: "s", value: "ID", description: "The vector store to add to." },
    new: { type: "string", value: "NAME", description: "Make a vector store of this name first." },
  },
  async run(input) {
    const files = input.positionals;
    if (files.length === 0) throw new UsageError("FILE is missing");
    const missing = files.find((file) => !existsSync(file) || !statSync(file).isFile());
    if (missing !== undefined) throw new CommandError(`${missing} is no file`);
    const [existing, name] = [input.text("store"), input.text("new")];
    if ((existing === undefined) === (name === undefined)) throw new UsageError("pass either --store or --new");
    const client = connect(input);
    const storeId = existing ?? (await client.json<VectorStore>("POST", "/v1/vector_stores", { name })).id;
    const progress = new Progress("ingest");
    try {
      for (const [index, file] of files.entries()) {
        progress.update(index, files.length, basename(file));
        await waitForFile(client, storeId, await addFile(client, storeId, basename(file), Bun.file(file)));
      }
      progress.update(files.length, files.length);
    } finally {
      progress.finish();
    }
    console.log(storeId);
    return 0;
  },
};

export const prepareCommand: Command = {
  name: "prepare",
  summary: "Compute and keep the KV of every fragment of a vector store, ahead of its first use.",
  usage: "STORE_ID",
  flags: serverFlags,
  async run(input) {
    const storeId = onlyPositional(input, "STORE_ID");
    const progress = new Progress("prepare");
    try {
      await prepareStore(connect(input), storeId, (job) => progress.update(job.done, job.total, "fragments"));
    } finally {
      progress.finish();
    }
    return 0;
  },
};
