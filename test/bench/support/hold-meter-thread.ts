/** The thread of hold-meter.ts. */
import type { Holds } from "./hold-meter.ts";
import { quantile } from "./stats.ts";

declare const self: Worker;

const pauseMs = 1;
const stop = new AbortController();

async function ask(url: string): Promise<Holds> {
  const times: number[] = [];
  while (!stop.signal.aborted) {
    const startMs = performance.now();
    await (await fetch(url)).arrayBuffer();
    times.push(performance.now() - startMs);
    await Bun.sleep(pauseMs);
  }
  return { longestMs: quantile(times, 1), p99Ms: quantile(times, 0.99), asked: times.length };
}

self.onmessage = async ({ data }: MessageEvent<{ readonly url: string } | "stop">) => {
  if (data === "stop") stop.abort();
  else self.postMessage(await ask(data.url));
};
