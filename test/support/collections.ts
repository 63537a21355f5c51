/** A process that collects all its objects again and again between large buffers: prints how much that took each time, at most. */
import { collectAll } from "../../gateway/process/memory-watch.ts";
import { forgetPeak, peakBytes, residentBytes } from "../bench/support/stalls/memory.ts";

const mib = 2 ** 20;
const live = Array.from({ length: 400_000 }, (_, at) => ({ at, text: `number ${at}` }));
const grownMib: number[] = [];
for (let round = 0; round < 40; round++) {
  const written = new Uint8Array(3 * mib * (round % 30)).fill(1);
  await Bun.sleep(written.length > 0 ? 1 : 0);
  forgetPeak(process.pid);
  const beforeBytes = residentBytes(process.pid);
  collectAll();
  grownMib.push((peakBytes(process.pid) - beforeBytes) / mib);
  // Until then the buffer that made it a collection of all objects counts as in use.
  await Bun.sleep(100);
}
process.stdout.write(JSON.stringify({ mostMib: Math.max(...grownMib), live: live.length }));
process.exit(0);
