/**
 * The mover: the one process that speaks to the bucket of KV, and has its keys. The gateway starts it without an
 * environment of settings, gives it the keys through their pipe, and it ends when that gateway is gone. It gives way to
 * everybody else on the machine.
 */
import { setPriority } from "node:os";
import { hideSelf } from "../process/confine.ts";
import { BucketStore } from "./bucket-store.ts";
import { type JobMessage, type MoverAnswer, MoverError, type OpenMessage } from "./protocol.ts";

const niceness = 10;

hideSelf([]);
try {
  setPriority(niceness);
} catch {
  // Where the system refuses, the mover keeps the priority that it was started with.
}

/** The first message opens the store; all others are jobs for it. */
process.once("message", ({ settings }: OpenMessage) => {
  const store = new BucketStore(settings);
  process.on("message", (message: JobMessage) => void work(store, message));
});
process.on("disconnect", () => process.exit(0));
// A terminal's Ctrl-C is meant for the gateway, which ends the mover when it is done.
process.on("SIGINT", () => undefined);

async function work(store: BucketStore, { number, job }: JobMessage): Promise<void> {
  try {
    const page = await store.do(job);
    answer({ is: "done", number, ...(page && { page }) });
  } catch (error) {
    const { failure, message: reason } = error instanceof MoverError ? error : new MoverError("bucket", String(error));
    answer({ is: "failed", number, failure, reason });
  }
}

function answer(message: MoverAnswer): void {
  process.send?.(message);
}
