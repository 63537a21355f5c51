/** A worker process without a model that answers as fast as it can: cases are many, and none is about its speed. */
import type { GatewayMessage } from "../../worker/contract/messages.ts";
import { FakeCore, fakeCard } from "../dispatch/fake-core.ts";

const core = new FakeCore((message) => void process.send?.(message));

/** One token for each request that runs, until none does. */
function turn(): void {
  if (!core.tick()) process.exit(0);
  if (core.runningCount > 0) setImmediate(turn);
}

process.on("disconnect", () => process.exit(0));
process.on("message", (message: GatewayMessage) => {
  const wasIdle = core.runningCount === 0;
  core.receive(message);
  if ((wasIdle && core.runningCount > 0) || message.type === "drain") setImmediate(turn);
});
process.send?.({ type: "ready", card: fakeCard });
