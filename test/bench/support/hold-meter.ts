/** How long a server's event loop is held: the longest that /health waited, asked without end from a thread of its own. */

export interface Holds {
  readonly longestMs: number;
  readonly p99Ms: number;
  readonly asked: number;
}

export class HoldMeter {
  readonly #thread: Worker;

  constructor(url: string) {
    this.#thread = new Worker(new URL("./hold-meter-thread.ts", import.meta.url));
    this.#thread.postMessage({ url: `${url}/health` });
  }

  async stop(): Promise<Holds> {
    const answer = new Promise<Holds>((resolve, reject) => {
      this.#thread.onmessage = ({ data }: MessageEvent<Holds>) => resolve(data);
      this.#thread.onerror = (event) => reject(new Error(event.message));
    });
    this.#thread.postMessage("stop");
    try {
      return await answer;
    } finally {
      this.#thread.terminate();
    }
  }
}
