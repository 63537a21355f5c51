/**
 * How long others wait: a tenant of its own asks for the models and for a short chat answer all the time, from a thread
 * of its own, so that nothing that this process does is taken for a wait of the server's.
 */

export interface Waits {
  readonly modelsMs: number[];
  readonly chatMs: number[];
  readonly failures: string[];
}

export type MeterOrder = { readonly url: string; readonly apiKey: string; readonly chat: object } | "take";

export class WaitMeter implements Disposable {
  readonly #thread = new Worker(new URL("./meter-thread.ts", import.meta.url));

  /** @param chat body of the short chat request */
  constructor(start: Exclude<MeterOrder, "take">) {
    this.#thread.postMessage(start satisfies MeterOrder);
  }

  /** Waits of the requests that began since the last time, those too that are still on their way. */
  async take(): Promise<Waits> {
    const answer = new Promise<Waits>((resolve, reject) => {
      this.#thread.onmessage = ({ data }: MessageEvent<Waits>) => resolve(data);
      this.#thread.onerror = (event) => reject(new Error(event.message));
    });
    this.#thread.postMessage("take" satisfies MeterOrder);
    return await answer;
  }

  [Symbol.dispose](): void {
    this.#thread.terminate();
  }
}
