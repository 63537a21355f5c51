/**
 * A worker process without a model that answers as fast as it can: cases are many, and none is about its speed. An
 * argument names a file to which the tokens of each request are appended, as a line of JSON.
 */
import { appendFileSync } from "node:fs";
import type { PipedMessage } from "../../worker/contract/piped-plan.ts";
import { FakeCore, fakeCard, unpiped } from "../dispatch/fake-core.ts";

const core = new FakeCore((message) => void process.send?.([message]));

/** One token for each request that runs, until none does. */
function turn(): void {
  if (!core.tick()) process.exit(0);
  if (core.runningCount > 0) setImmediate(turn);
}

process.on("disconnect", () => process.exit(0));
const [requestsFile] = process.argv.slice(2);

process.on("message", (given: PipedMessage) => {
  const message = unpiped(given);
  if (message.type === "submit" && requestsFile !== undefined) {
    const tokenIds = message.plan.runs.flatMap((run) => [...run.tokenIds]);
    appendFileSync(requestsFile, `${JSON.stringify({ requestId: message.requestId, tokenIds })}\n`);
  }
  const wasIdle = core.runningCount === 0;
  core.receive(message);
  if ((wasIdle && core.runningCount > 0) || message.type === "drain") setImmediate(turn);
});
process.send?.([{ type: "ready", card: fakeCard }]);
