/** Products of our own against what the machine's matrix units and memory give, for `bench kernels`. */
import type { CpuKernels, Matrix } from "../../../worker/native/cpu-kernels.ts";
import { atLeast, type Bar } from "../bench.ts";
import type { MachinePeak } from "./peak.ts";
import { figure } from "./stats.ts";

interface Case {
  readonly form: "b16" | "int8";
  readonly parts: 1 | 2;
  readonly rows: number;
}

const outputs = 3_072;
const inputs = 1_024;
/** So many matrices in turn that no cache of one core holds them; reading as many bytes is what they are compared to. */
const matrixCount = 24;
const cases: readonly Case[] = [
  { form: "b16", parts: 1, rows: 1 },
  { form: "b16", parts: 2, rows: 1 },
  { form: "int8", parts: 1, rows: 1 },
  { form: "b16", parts: 1, rows: 32 },
  { form: "int8", parts: 1, rows: 32 },
  { form: "b16", parts: 1, rows: 512 },
  { form: "b16", parts: 2, rows: 512 },
  { form: "int8", parts: 1, rows: 512 },
];

export interface ProductRows {
  readonly rows: readonly (readonly string[])[];
  readonly bars: readonly Bar[];
}

function openMatrices(kernels: CpuKernels, form: Case["form"]): Matrix[] {
  const data = Float32Array.from({ length: outputs * inputs }, (_, i) => Math.sin(i));
  return Array.from({ length: matrixCount }, () => {
    const matrix = kernels.openMatrix({ outputs, inputs, form });
    matrix.fill({ data, type: "float32" }, { rowCount: outputs, firstOutput: 0 });
    return matrix;
  });
}

/** @returns nanoseconds a matrix */
function measure(matrices: readonly Matrix[], { rows, parts }: Case): number {
  const x = Float32Array.from({ length: rows * inputs }, (_, i) => Math.cos(i));
  const out = new Float32Array(rows * outputs);
  const endMs = performance.now() + 600;
  let fastestNs = Number.POSITIVE_INFINITY;
  for (let round = 0; round < 3 || performance.now() < endMs; round++) {
    const startNs = Bun.nanoseconds();
    for (const matrix of matrices) matrix.multiply(x, rows, out, { parts });
    fastestNs = Math.min(fastestNs, (Bun.nanoseconds() - startNs) / matrices.length);
  }
  return fastestNs;
}

/** In the columns of `bench kernels`. The rate counts each part of b16, since each is multiplied. */
export function productRows(kernels: CpuKernels, peak: MachinePeak, threadCount: number): ProductRows {
  const bars: Bar[] = [];
  const rows: string[][] = [];
  for (const form of ["b16", "int8"] as const) {
    const matrices = openMatrices(kernels, form);
    for (const each of cases.filter((one) => one.form === form)) {
      const ns = measure(matrices, each);
      const name = `${each.rows} rows, ${form}${form === "b16" ? ` in ${each.parts}` : ""}`;
      const gigaOps = (2 * outputs * inputs * each.rows * (kernels.isa === "amx" ? each.parts : 1)) / ns;
      const gigabytes = (matrices[0]?.bytes ?? 0) / ns;
      const [peakOps, peakGigabytes] = [
        peak.tiles(threadCount, form),
        peak.gigabytes(
          threadCount,
          matrices.reduce((sum, matrix) => sum + matrix.bytes, 0),
        ),
      ];
      if (each.rows === 512 && kernels.isa === "amx") {
        bars.push(atLeast(`${name}: of AMX's peak`, gigaOps / peakOps, 0.45));
      }
      if (each.rows === 1) bars.push(atLeast(`${name}: of memory rate`, gigabytes / peakGigabytes, 0.85));
      const figures = [ns / 1e3, gigaOps, peakOps, gigabytes, peakGigabytes].map(figure);
      rows.push([`product, ${name}`, `${outputs} x ${inputs}`, "", ...figures, ""]);
    }
    for (const matrix of matrices) matrix.close();
  }
  return { rows, bars };
}
