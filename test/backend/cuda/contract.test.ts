/** The device's contract through the engine (test/gpu), tried on the emulated device: two that split their work differently. */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import type { Backend } from "../../../worker/backend/backend.ts";
import { CudaBackend, numericMode } from "../../../worker/backend/cuda/cuda-backend.ts";
import { kvBytesPerBlock } from "../../../worker/backend/cuda/pool.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { type ContractSides, contractRows, engineChecks, type PoolSize } from "../../gpu/contract-engine.ts";
import { EmulatedDevice } from "./emulated-device.ts";

// Every step is computed three times in plain loops.
setDefaultTimeout(60_000);

const model = loadModel(join(import.meta.dir, "../../golden/qwen3"), numericMode);

async function open({ blockCount, blockTokens }: PoolSize, multiprocessorCount: number, graphs: boolean) {
  const device = new EmulatedDevice(model.config.headDim);
  device.multiprocessorCount = multiprocessorCount;
  const kvBytes = blockCount * kvBytesPerBlock(model.config, { blockTokens });
  return CudaBackend.open(device, model, { ...contractRows, kvBytes, blockTokens, reserveBytes: 0, graphs });
}

const sides: ContractSides = {
  openDevice: (size, graphs) => open(size, 4, graphs),
  openLoops: (size) => open(size, 1, false),
};

describe("through the engine", () => {
  test.each(Object.entries(engineChecks))("%s", async (_, check) => {
    expect(await check(sides)).not.toBe("");
  });
});

describe("a backend that is wrong", () => {
  const wrong = (change: (backend: Backend) => Partial<Backend>): ContractSides => ({
    ...sides,
    openDevice: async (size, graphs) => {
      const backend = await sides.openDevice(size, graphs);
      return new Proxy(backend, {
        get: (target, name) => {
          const found = Reflect.get({ ...change(backend) }, name) ?? Reflect.get(target, name);
          return typeof found === "function" ? found.bind(target) : found;
        },
      });
    },
  });

  test("in one logit, is found", async () => {
    const spoiled = wrong((backend) => ({
      forward: async (batch) => {
        const logits = (await backend.forward(batch)).slice();
        if (logits.length > 0) logits[7] += 0.5;
        return logits;
      },
    }));
    await expect(engineChecks["mixed steps"](spoiled)).rejects.toThrow("a logit is off by");
  });

  test("in what it draws, is found", async () => {
    const spoiled = wrong((backend) => ({
      sampleStep: async (batch, requests) => {
        const warm = requests.map((request) => ({ ...request, params: { ...request.params, minP: 0 } }));
        return (await backend.sampleStep?.(batch, warm)) ?? [];
      },
    }));
    await expect(engineChecks.sampling(spoiled)).rejects.toThrow("the host draws");
  });

  test("in a token that a step names before it is drawn, is found", async () => {
    const spoiled = wrong((backend) => ({
      beginStep: (batch, requests) => {
        const tokenIds = batch.tokenIds.map((id) => (id < 0 ? 9 : id));
        const begun = backend.beginStep?.({ ...batch, tokenIds }, requests);
        if (begun === undefined) throw new Error("the backend begins no step ahead");
        return begun;
      },
    }));
    await expect(engineChecks["steps ahead"](spoiled)).rejects.toThrow("below the best");
  });

  test("in its deviations, is found", async () => {
    const spoiled = wrong((backend) => ({
      deviations: async (batch) => (await backend.deviations(batch)).map((value) => 1.2 * value),
    }));
    await expect(engineChecks.blending(spoiled)).rejects.toThrow("a deviation is off by");
  });

  test("in a copy that is not rotated, is found", async () => {
    const spoiled = wrong((backend) => ({
      copyTokens: (copies) => backend.copyTokens({ ...copies, deltas: copies.deltas.map(() => 0) }),
    }));
    await expect(engineChecks.blending(spoiled)).rejects.toThrow(/is off by/);
  });
});
