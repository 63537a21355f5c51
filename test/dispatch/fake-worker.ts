/** A worker process without a model. An argument is the sentence with which it fails for good at start. */
import type { GatewayMessage } from "../../worker/contract/messages.ts";
import { FakeCore, fakeCard } from "./fake-core.ts";

const send = (message: unknown): void => {
  process.send?.(message);
};
const core = new FakeCore(send);

process.on("disconnect", () => process.exit(0));
const [fatal] = process.argv.slice(2);
if (fatal !== undefined) {
  send({ type: "fatal", message: fatal });
  setTimeout(() => process.exit(1), 20);
} else {
  process.on("message", (message: GatewayMessage) => core.receive(message));
  setInterval(() => {
    if (!core.tick()) process.exit(0);
  }, 1);
  send({ type: "ready", card: { ...fakeCard, id: process.env.SPANGATE_MODEL_NAME ?? fakeCard.id } });
}
