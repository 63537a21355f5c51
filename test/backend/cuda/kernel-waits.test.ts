import { describe, expect, test } from "bun:test";
import { type KernelName, kernelSignatures } from "../../../worker/backend/cuda/device/kernels.ts";
import { EmulatedDevice } from "./emulated-device.ts";
import { waitsForPrevious, waitsIn } from "./kernel-waits.ts";

const common = "void wait_for_previous() { asm(); } void other() { }";

describe("a kernel's text", () => {
  test.each([
    ["the kernel waits", "void k(int a) { wait_for_previous(); a = 1; }", true],
    ["what it calls waits", "struct W { void run() { wait_for_previous(); } }; void k() { W().run(); }", true],
    ["nothing waits", "void k() { other(); }", false],
    ["another kernel waits", "void j() { wait_for_previous(); } void k() { other(); }", false],
    ["a comment waits", "void k() { /* wait_for_previous(); */ other(); }", false],
    ["a block may end before it has waited", "void k() { if (other) return; wait_for_previous(); }", false],
  ])("%s", (_, text, waits) => {
    expect(waitsIn(`${common} ${text}`, "k")).toBe(waits);
  });
});

/** They begin a step, end one, or run between steps, and are launched when all before them has ended. */
const neverAhead =
  "fill_rope_table embed_rows sample_rows logprobs copy_tokens pack_blocks unpack_blocks shadow_blocks deviations";

test("every kernel of a step waits but for those at its ends", () => {
  const names = Object.keys(kernelSignatures) as KernelName[];
  expect(names.filter((name) => !waitsForPrevious(name)).join(" ")).toBe(neverAhead);
});

test("an emulated device launches no kernel ahead that does not wait", () => {
  const device = new EmulatedDevice(128, 1 << 20);
  const launch = device.prepare("fill_rope_table", null, 0, 0, 0, new Uint8Array(8), null);
  expect(() => launch({ grid: [1], blockThreads: 256, overlapsPrevious: true })).toThrow("fill_rope_table");
});
