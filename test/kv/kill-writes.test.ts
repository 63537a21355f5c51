/** A worker that is killed at any step of a write leaves nothing that can be found after the next start. */
import { expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { KvRig } from "./rig.ts";

setDefaultTimeout(60_000);

const steps = [
  ["open", 1],
  ["header", 1],
  ["head", 1],
  ["block", 1],
  ["block", 4],
  ["datasync", 1],
  ["rename", 1],
  ["folder", 1],
] as const;

const writer = join(import.meta.dir, "..", "tiers", "kill-writer.ts");

test.each(steps)("killed at %s %d", async (step, nth) => {
  using rig = new KvRig();
  await rig.start();
  const child = Bun.spawn([process.execPath, writer, rig.folder, step, String(nth)], {
    stdout: "pipe",
    stderr: "pipe",
  });
  await child.exited;
  expect([child.signalCode, await new Response(child.stdout).text()]).toEqual(["SIGKILL", ""]);
  expect(readdirSync(rig.folder).length).toBe(2);
  await rig.start();
  expect([rig.catalog, rig.rows, await rig.files()]).toEqual([[], 0, []]);
});

test("not killed, it writes the object", async () => {
  using rig = new KvRig();
  mkdirSync(rig.folder, { recursive: true });
  const child = Bun.spawn([process.execPath, writer, rig.folder, "none"], { stdout: "pipe" });
  expect([await child.exited, await new Response(child.stdout).text()]).toEqual([0, "kept\n"]);
});
