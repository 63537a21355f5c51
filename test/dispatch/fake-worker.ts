/** A worker process without a model. An argument is the sentence with which it fails for good at start. */
import type { PipedMessage } from "../../worker/contract/piped-plan.ts";
import { FakeCore, fakeCard, unpiped } from "./fake-core.ts";

const send = (message: unknown): void => {
  process.send?.([message]);
};
const core = new FakeCore(send);

process.on("disconnect", () => process.exit(0));
const [fatal] = process.argv.slice(2);
if (fatal !== undefined) {
  send({ type: "fatal", message: fatal });
  setTimeout(() => process.exit(1), 20);
} else {
  process.on("message", (message: PipedMessage) => core.receive(unpiped(message)));
  setInterval(() => {
    if (!core.tick()) process.exit(0);
  }, 1);
  send({ type: "ready", card: { ...fakeCard, id: process.env.SPANGATE_MODEL_NAME ?? fakeCard.id } });
}
