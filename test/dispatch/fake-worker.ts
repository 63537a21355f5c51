/** A worker process without a model. FAKE_FATAL=sentence: fails for good at start. FAKE_TICK_MS: pace of tokens. */
import type { GatewayMessage } from "../../worker/contract/messages.ts";
import { FakeCore, fakeCard } from "./fake-core.ts";

const send = (message: unknown): void => {
  process.send?.(message);
};
const core = new FakeCore(send);

process.on("disconnect", () => process.exit(0));
if (process.env.FAKE_FATAL !== undefined) {
  send({ type: "fatal", message: process.env.FAKE_FATAL });
  setTimeout(() => process.exit(1), 20);
} else {
  process.on("message", (message: GatewayMessage) => core.receive(message));
  setInterval(
    () => {
      if (!core.tick()) process.exit(0);
    },
    Number(process.env.FAKE_TICK_MS ?? "1"),
  );
  send({ type: "ready", card: { ...fakeCard, id: process.env.SPANGATE_MODEL_NAME ?? fakeCard.id } });
}
