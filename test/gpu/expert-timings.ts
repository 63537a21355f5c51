/** How long the kernels of experts take in the shape of a 30B with 3B active (128 experts of 768, hidden 2,048, 8 a row). */
import type { DeviceBuffer, LaunchSize } from "../../worker/backend/cuda/device/device.ts";
import { manySharedBytes } from "../../worker/backend/cuda/products/expert-space.ts";
import type { Random } from "../native/random.ts";
import { fillRandom, type KernelTimer, putInts } from "./kernel-timings.ts";

const [experts, perToken, hidden, ffn] = [128, 8, 2_048, 768];

export async function timeExperts(timer: KernelTimer, random: Random): Promise<void> {
  const { device } = timer;
  const maxRows = 8_192;
  const space = (name: string, type: "bfloat16" | "float32", count: number) => {
    const buffer = device.allocate(name, count * (type === "float32" ? 4 : 2));
    fillRandom(device, random, buffer, type);
    return buffer;
  };
  const weights = space("weights", "bfloat16", experts * 2 * ffn * hidden);
  const input = space("input", "bfloat16", maxRows * hidden);
  const between = space("between", "bfloat16", maxRows * perToken * ffn);
  const out = space("out", "bfloat16", maxRows * perToken * hidden);
  const scores = space("scores", "float32", (maxRows + 4) * experts);
  for (const name of ["experts_gated_wgmma", "experts_down_wgmma"] as const)
    device.allowSharedBytes(name, manySharedBytes);
  for (const [rows, isMany] of [
    [1, false],
    [8, false],
    [64, false],
    [256, false],
    [256, true],
    [maxRows, true],
  ] as const) {
    const size = isMany ? 128 : 16;
    const assignments = rows * perToken;
    const tileCount = Math.floor(assignments / size) + Math.min(experts, assignments);
    // Every launch meets other experts.
    const sets = Array.from({ length: 4 }, (_, set) => {
      const ints = (count: number) => putInts(device, new Int32Array(count));
      const [chosen, factors, order, tiles] = [assignments, assignments, assignments, 4 * tileCount].map(ints);
      const count = putInts(device, Int32Array.of(rows));
      const from = scores.slice(set * experts * 4);
      const route = device.prepare("route_rows", from, null, count, experts, perToken, 1, chosen, factors);
      const group = device.prepare("group_rows", chosen, count, perToken, experts, size, tileCount, order, tiles);
      return { route, group, order, tiles };
    });
    const launchOf = (product: "gated" | "down", order: DeviceBuffer, tiles: DeviceBuffer) => {
      const places = [null, tiles, order] as const;
      const shape = [perToken, hidden, ffn, 1, ffn, 0] as const;
      if (isMany && product === "gated")
        return device.prepare("experts_gated_wgmma", input, weights, ...places, ...shape, between);
      if (isMany) return device.prepare("experts_down_wgmma", between, weights, ...places, ffn, hidden, out);
      const form = [weights, null, 0, 0, 0] as const;
      return product === "gated"
        ? device.prepare("experts_gated_b16", input, ...form, ...places, ...shape, null, 0, 1, between)
        : device.prepare("experts_down_b16", between, ...form, ...places, ffn, hidden, out);
    };
    const wide = (outputs: number): LaunchSize =>
      isMany
        ? { grid: [outputs, tileCount], blockThreads: 256, sharedBytes: manySharedBytes, overlapsPrevious: true }
        : { grid: [outputs, tileCount], blockThreads: 128, overlapsPrevious: true };
    const met = experts * (1 - (1 - perToken / experts) ** rows);
    const cost = (outputs: number, inputs: number) => ({
      bytes: met * outputs * inputs * 2,
      flop: 2 * assignments * outputs * inputs,
    });
    const name = `${rows} rows${isMany ? " by warpgroups" : ""}`;
    const [routed, grouped] = [
      { grid: [Math.ceil(rows / 4)], blockThreads: 128, overlapsPrevious: true } as const,
      { grid: [experts], blockThreads: 256, overlapsPrevious: true } as const,
    ];
    await timer.time(`route_rows ${name}`, { bytes: rows * experts * 4, flop: 0 }, 4, (i) => sets[i].route(routed));
    await timer.time(`group_rows ${name}`, { bytes: assignments * 8, flop: 0 }, 4, (i) => sets[i].group(grouped));
    const gated = sets.map(({ order, tiles }) => launchOf("gated", order, tiles));
    const down = sets.map(({ order, tiles }) => launchOf("down", order, tiles));
    const [gatedSize, downSize] = isMany ? [ffn / 128, hidden / 256] : [ffn / 8, hidden / 16];
    await timer.time(`gated ${name}`, cost(2 * ffn, hidden), 4, (i) => gated[i](wide(gatedSize)));
    await timer.time(`down ${name}`, cost(hidden, ffn), 4, (i) => down[i](wide(downSize)));
  }
}
