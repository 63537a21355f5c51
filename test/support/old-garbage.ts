/** A process with old garbage and a watch over its memory: prints how much garbage there was, and how much was left. */
import { watchMemory } from "../../gateway/process/memory-watch.ts";

const mib = 2 ** 20;
const patienceMs = 5_000;
const residentMib = (): number => process.memoryUsage.rss() / mib;
const objects = (count: number): object[] => Array.from({ length: count }, (_, at) => ({ at, text: `number ${at}` }));

const beforeMib = residentMib();
const held = { garbage: objects(600_000), growth: objects(0) };
// Objects that two collections have spared are old.
for (let count = 0; count < 2; count++) {
  Bun.gc(false);
  await Bun.sleep(200);
}
const garbageMib = residentMib() - beforeMib;
watchMemory();
held.garbage = [];
// The process grows once more, and nothing of that is garbage.
held.growth = objects(200_000);
const untilMs = performance.now() + patienceMs;
while (residentMib() > beforeMib + garbageMib && performance.now() < untilMs) await Bun.sleep(50);
await Bun.sleep(200);
process.stdout.write(JSON.stringify({ garbageMib, leftMib: residentMib() - beforeMib, grown: held.growth.length }));
process.exit(0);
