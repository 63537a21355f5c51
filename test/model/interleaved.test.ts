/** Pairs (2i, 2i + 1) in what is stored of q and k: read into halves, against RoPE's definition in float64. */
import { describe, expect, test } from "bun:test";
import { type ModelConfig, parseModelConfig } from "../../worker/model/config.ts";
import { unpairRows } from "../../worker/model/tensor-layout.ts";
import { Weights } from "../../worker/model/weights.ts";
import { Random } from "../native/random.ts";
import { randomTensors, tinyConfig, writeModelFolder } from "./folder.ts";

type Vector = readonly number[];
interface Projection {
  readonly weight: Float32Array;
  readonly bias: Float32Array;
  readonly norm: Float32Array;
}

/** With everything that q and k can have at once, which no architecture does. */
function configOf(partialRotaryFactor: number): ModelConfig {
  const raw = { ...tinyConfig, partial_rotary_factor: partialRotaryFactor, rope_parameters: { rope_theta: 500 } };
  const glm = parseModelConfig({ ...raw, architectures: ["GlmForCausalLM"] }, "config.json");
  return { ...glm, qkNorm: "head", fusedGateUp: false };
}

/** RoFormer, equation 16: x[2i] + j x[2i + 1] times e^(j position theta^(-2i / d)); the rest of the head stays. */
function rotatedByDefinition(head: Vector, position: number, { rope }: ModelConfig): Vector {
  const rotated = [...head];
  for (let i = 0; i < rope.rotaryDim / 2; i++) {
    const angle = position * 500 ** ((-2 * i) / rope.rotaryDim);
    const [x, y] = [head[2 * i], head[2 * i + 1]];
    rotated[2 * i] = x * Math.cos(angle) - y * Math.sin(angle);
    rotated[2 * i + 1] = x * Math.sin(angle) + y * Math.cos(angle);
  }
  return rotated;
}

/** As kernels do it: pairs (i, i + rotaryDim / 2). */
function rotatedByHalves(head: Vector, position: number, { rope }: ModelConfig): Vector {
  const half = rope.rotaryDim / 2;
  const rotated = [...head];
  for (let i = 0; i < half; i++) {
    const angle = position * rope.inverseFrequencies[i];
    const [x, y] = [head[i], head[i + half]];
    rotated[i] = x * Math.cos(angle) - y * Math.sin(angle);
    rotated[i + half] = x * Math.sin(angle) + y * Math.cos(angle);
  }
  return rotated;
}

/** Projection of `hidden` to one head: bias, then RMSNorm. */
function headOf(hidden: Vector, head: number, { weight, bias, norm }: Projection): Vector {
  const size = norm.length;
  const values = Array.from({ length: size }, (_, dimension) => {
    const row = head * size + dimension;
    return hidden.reduce((sum, x, i) => sum + x * weight[row * hidden.length + i], bias[row]);
  });
  const factor = 1 / Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / size + 1e-6);
  return values.map((x, i) => x * factor * norm[i]);
}

function projections(read: (name: string) => Float32Array): Record<"q" | "k", Projection> {
  const part = (name: string) => ({
    weight: read(`${name}_proj.weight`),
    bias: read(`${name}_proj.bias`),
    norm: read(`${name}_norm.weight`),
  });
  return { q: part("q"), k: part("k") };
}

const dot = (a: Vector, b: Vector): number => a.reduce((sum, x, i) => sum + x * b[i], 0);

describe.each([0.5, 0.75, 1])("a share of %d of each head rotated", (share) => {
  const config = { ...configOf(share), interleavedRope: true };
  const raw = { ...tinyConfig, architectures: ["Qwen3ForCausalLM"] };
  const tensors = randomTensors(raw);
  const random = new Random(8);
  const normals = (count: number) => random.normals(count, 1e9);
  for (const [name, { data }] of tensors)
    data.set(normals(data.length).map((x) => (name.includes("norm") ? 1 : 0) + x / 8));
  for (const [name, size] of Object.entries({ q: 64, k: 32, v: 32 })) {
    for (let layer = 0; layer < tinyConfig.num_hidden_layers; layer++) {
      tensors.set(`model.layers.${layer}.self_attn.${name}_proj.bias`, { shape: [size], data: normals(size) });
    }
  }
  const weights = new Weights(writeModelFolder(raw, tensors), config);
  const prefix = "model.layers.1.self_attn.";
  const stored = projections((name) => tensors.get(prefix + name)?.data ?? new Float32Array(0));
  const read = projections((name) => weights.float32(prefix + name));
  const [asking, asked] = [[...normals(64)], [...normals(64)]];

  /** Of query head 3 at `position` and its KV head, which is stored at `start` and moved by `delta`. */
  function scores(position: number, start: number, delta: number) {
    const [q, k] = [headOf(asking, 3, read.q), rotatedByHalves(headOf(asked, 1, read.k), start, config)];
    return {
      moved: dot(rotatedByHalves(q, position, config), rotatedByHalves(k, delta, config)),
      offset: dot(rotatedByHalves(q, position - delta, config), k),
      defined: dot(
        rotatedByDefinition(headOf(asking, 3, stored.q), position, config),
        rotatedByDefinition(headOf(asked, 1, stored.k), start + delta, config),
      ),
    };
  }

  test("scores are the definition's, of a K that is moved and of a query that is rotated less", () => {
    expect(config.rope.rotaryDim).toBe(16 * share);
    for (const [position, start, delta] of [
      [0, 0, 0],
      [9, 4, 0],
      [230, 17, 101],
      [300, 40, -33],
    ]) {
      const { moved, offset, defined } = scores(position, start, delta);
      // Frequencies are float32: an angle of 300 is off by 2e-5, of heads with a norm of 4.
      expect(Math.abs(moved - defined)).toBeLessThan(1e-3);
      expect(Math.abs(offset - defined)).toBeLessThan(1e-3);
    }
    const far = scores(230, 17, 101).defined;
    expect(Math.abs(scores(230, 17, 0).defined - far)).toBeGreaterThan(0.1);
  });

  test("nothing else changes its place", () => {
    for (const name of ["v_proj.weight", "v_proj.bias", "o_proj.weight"]) {
      expect(weights.float32(prefix + name)).toEqual(tensors.get(prefix + name)?.data ?? new Float32Array(0));
    }
  });
});

test("rows of two heads, by hand", () => {
  const stored = Float32Array.of(0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15);
  const out = unpairRows(stored, 1, { headDim: 6, rotaryDim: 4 }, new Float32Array(12));
  expect([...out]).toEqual([0, 2, 1, 3, 4, 5, 10, 12, 11, 13, 14, 15]);
});
