import { type Command, serverFlags } from "../support/command.ts";
import { connect, onlyPositional } from "../support/connect.ts";
import { prepareStore } from "../support/operations.ts";
import { Progress } from "../support/progress.ts";

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
