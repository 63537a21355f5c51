/** Writes one object into a folder and kills itself at a step of the write: `bun kill-writer.ts FOLDER STEP NTH`. */
import { Keeps } from "../../worker/tiers/keeps.ts";
import { countUp, submitPlan } from "../engine/plans.ts";
import { keepMessages, modelDigest, openWorld } from "./disk-world.ts";

const [folder = "", lastStep, nth = "1"] = process.argv.slice(2);
const tokenIds = countUp(7, 15);
const world = openWorld();
world.engine.submit(submitPlan("prepare", { spans: [tokenIds] }, { params: { maxTokens: 0 } }));
await world.settle();
const { mover } = world.backend;
const left = { steps: Number(nth) };
const keeps = new Keeps({
  shape: { modelDigest, blockTokens: 4, blocks: mover.format },
  mover,
  cache: world.engine.cache,
  turn: () => undefined,
  emit: (message) => {
    process.stdout.write(`${message.type}\n`);
  },
  onStep: (step) => {
    if (step !== lastStep) return;
    left.steps -= 1;
    if (left.steps === 0) process.kill(process.pid, "SIGKILL");
  },
});
for (const message of keepMessages(folder, tokenIds)) keeps.add(message);
