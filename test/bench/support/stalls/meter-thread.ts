/** The thread of meter.ts: a tenant that does little, and asks without end how long that takes. */
import type { MeterOrder, Waits } from "./meter.ts";

declare const self: Worker;

const modelsPauseMs = 2;
const chatPauseMs = 10;

class Meter {
  #waits: Waits = { modelsMs: [], chatMs: [], failures: [] };
  /** Requests that are on their way: a wait counts where its request began. */
  #pending = new Set<Promise<void>>();

  start({ url, apiKey, chat }: Exclude<MeterOrder, "take">): void {
    const headers = { authorization: `Bearer ${apiKey}`, "content-type": "application/json" };
    const body = JSON.stringify(chat);
    const ask = () => fetch(`${url}/v1/chat/completions`, { method: "POST", headers, body });
    void this.#askForEver(modelsPauseMs, () => this.#timed("modelsMs", () => fetch(`${url}/v1/models`, { headers })));
    void this.#askForEver(chatPauseMs, () => this.#timed("chatMs", ask));
  }

  async take(): Promise<Waits> {
    const [taken, open] = [this.#waits, [...this.#pending]];
    this.#waits = { modelsMs: [], chatMs: [], failures: [] };
    this.#pending = new Set();
    await Promise.all(open);
    return taken;
  }

  async #askForEver(pauseMs: number, ask: () => Promise<void>): Promise<never> {
    for (;;) {
      const asked = ask();
      const pending = this.#pending;
      pending.add(asked);
      await asked;
      pending.delete(asked);
      await Bun.sleep(pauseMs);
    }
  }

  async #timed(list: "modelsMs" | "chatMs", send: () => Promise<Response>): Promise<void> {
    const waits = this.#waits;
    const startMs = performance.now();
    try {
      const answer = await send();
      const text = await answer.text();
      if (!answer.ok) waits.failures.push(`${answer.status} ${text.slice(0, 200)}`);
    } catch (error) {
      waits.failures.push(String(error));
    }
    waits[list].push(performance.now() - startMs);
  }
}

const meter = new Meter();
self.onmessage = async ({ data }: MessageEvent<MeterOrder>) => {
  if (data === "take") self.postMessage(await meter.take());
  else meter.start(data);
};
