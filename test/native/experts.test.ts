/** Experts multiplied together: the bits of each one's own products on every instruction set, and what is refused. */
import { describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { type CpuKernels, type GivenRows, type Matrix, openCpuKernels } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { firstDifferentBits } from "./compare.ts";
import { kernelsOf } from "./instruction-set.ts";
import { Random } from "./random.ts";

const libraryPath = await buildCpuKernels();
const [hidden, size, padded] = [96, 64, 64];
const forms = ["b16", "int8", "mx4"] as const;
type Form = (typeof forms)[number];

function randomMatrix(kernels: CpuKernels, random: Random, form: Form, outputs: number, inputs: number): Matrix {
  const matrix = kernels.openMatrix({ outputs, inputs, form });
  const place = { rowCount: outputs, firstOutput: 0 };
  if (form === "mx4") {
    const blocks = Uint8Array.from({ length: (outputs * inputs) / 2 }, () => random.integer(0, 255));
    const scales = Uint8Array.from({ length: (outputs * inputs) / 32 }, () => random.integer(120, 124));
    matrix.fillBlocks({ blocks, scales, rowStep: 1 }, place);
  } else matrix.fill({ data: random.normals(outputs * inputs), type: "float32" }, place);
  return matrix;
}

function randomExperts(kernels: CpuKernels, random: Random, form: Form, count: number, biased: boolean) {
  return Array.from({ length: count }, () => ({
    gateUp: randomMatrix(kernels, random, form, 2 * padded, hidden),
    gateUpBias: biased ? random.normals(2 * padded) : undefined,
    down: randomMatrix(kernels, random, form, hidden, size),
    downBias: biased ? random.normals(hidden) : undefined,
  }));
}

/** Rows of each expert, rising; some have none, and two have the same. */
function randomRows(random: Random, count: number, rowCount: number) {
  const lists = Array.from({ length: count }, () =>
    Array.from({ length: rowCount }, (_, row) => row).filter(() => random.integer(0, 2) === 0),
  );
  lists[1] = [];
  lists[3] = [...lists[2]];
  const starts = Int32Array.from({ length: count + 1 }, (_, i) => lists.slice(0, i).flat().length);
  const rows = Int32Array.from(lists.flat());
  return { starts, rows, factors: random.normals(rows.length) };
}

describe.each(["reference", "avx2", "avx512", "amx"] as const)("%s", (isa) => {
  const { testHere, here } = kernelsOf(libraryPath, isa, 2);

  testHere.each(forms)("%s: as one after the other", (form) => {
    for (const [rowCount, biased] of [
      [1, true],
      [40, false],
      [40, true],
    ] as const) {
      const random = new Random(testSeed() + rowCount);
      const all = randomExperts(here(), random, form, 6, biased);
      const set = here().openExperts(all);
      const { starts, rows, factors } = randomRows(random, 6, rowCount);
      const x = random.normals(rowCount * hidden);
      const norm = { weights: random.normals(hidden), epsilon: 1e-5 };
      const finish = biased ? "gateClamped" : "gate";
      const before = random.normals(rowCount * hidden);
      const [together, apart] = [before.slice(), before.slice()];
      const gated = [0, 1].map(() => new Float32Array(rows.length * padded + 1).fill(Number.NaN));
      for (const [first, end] of [
        [0, 2],
        [2, 6],
      ]) {
        const given = { first, end, starts, rows };
        set.gate(given, x, norm, finish, gated[0], padded);
        set.add(given, factors, 0.5, gated[0], padded, together);
      }
      for (const [index, { gateUp, gateUpBias, down, downBias }] of all.entries()) {
        const [from, to] = starts.subarray(index, index + 2);
        if (from === to) continue;
        const own = { xRows: rows.subarray(from, to), norm, finish, bias: gateUpBias, outStride: padded } as const;
        gateUp.multiply(x, to - from, gated[1].subarray(from * padded), own);
        const places = { outRows: rows.subarray(from, to), rowFactors: factors.subarray(from, to) };
        const sum = { finish: "add", factor: 0.5, xStride: padded, bias: downBias, ...places } as const;
        down.multiply(gated[1].subarray(from * padded), to - from, apart, sum);
      }
      expect(firstDifferentBits(gated[0], gated[1])).toBe(-1);
      expect(firstDifferentBits(together, apart)).toBe(-1);
      set.close();
      for (const { gateUp, down } of all) for (const each of [gateUp, down]) each.close();
    }
  });
});

test("what does not fit together is refused", async () => {
  const kernels = await openCpuKernels({ threadCount: 1 });
  const random = new Random(testSeed());
  const all = randomExperts(kernels, random, "b16", 2, false);
  const wider = randomMatrix(kernels, random, "b16", 2 * padded + 32, hidden);
  expect(() => kernels.openExperts([])).toThrow(/experts/);
  expect(() => kernels.openExperts([all[0], { ...all[1], gateUp: wider }])).toThrow(/out of range/);
  const deep = randomMatrix(kernels, random, "b16", hidden, padded + 32);
  expect(() => kernels.openExperts(all.map((each) => ({ ...each, down: deep })))).toThrow(/out of range/);
  const set = kernels.openExperts(all);
  const [x, gated] = [new Float32Array(3 * hidden), new Float32Array(4 * padded)];
  const given: GivenRows = { first: 0, end: 2, starts: Int32Array.of(0, 1, 3), rows: Int32Array.of(2, 0, 1) };
  const gate =
    (change: Partial<GivenRows>, stride = padded) =>
    () =>
      set.gate({ ...given, ...change }, x, undefined, "gate", gated, stride);
  expect(gate({})).not.toThrow();
  expect(gate({ end: 3 })).toThrow(/end must be/);
  expect(gate({ first: 2 })).toThrow(/first must be/);
  expect(gate({ starts: Int32Array.of(0, 2, 1) })).toThrow(/product/);
  expect(gate({ starts: Int32Array.of(1, 1, 3) })).toThrow(/product/);
  expect(gate({ starts: Int32Array.of(0, 1, 4) })).toThrow(/rows must have at least 4/);
  expect(gate({ rows: Int32Array.of(2, 1, 1) })).toThrow(/product/);
  expect(gate({ rows: Int32Array.of(-1, 0, 1) })).toThrow(/product/);
  expect(gate({ rows: Int32Array.of(3, 0, 1) })).toThrow(/rows of x or out must have at least 384/);
  expect(gate({}, padded - 1)).toThrow(/gatedStride/);
  expect(gate({}, 2 * padded)).toThrow(/gated must have/);
  const factors = new Float32Array(2);
  expect(() => set.add(given, factors, 1, gated, padded, x)).toThrow(/rowFactors must have at least 3/);
  expect(() => set.add(given, new Float32Array(3), Number.NaN, gated, padded, x)).toThrow(/product/);
  set.close();
  expect(gate({})).toThrow(/closed/);
  kernels.close();
});
