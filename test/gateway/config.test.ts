import { describe, expect, test } from "bun:test";
import { parseConfig } from "../../gateway/config.ts";
import { workerEnvironment } from "../../gateway/process/child-environment.ts";

describe("configuration", () => {
  test("has a default for everything, and an empty variable counts as unset", () => {
    const config = parseConfig({ SPANGATE_PORT: "", SPANGATE_DATA: "" });
    expect(config).toMatchObject({
      host: "127.0.0.1",
      port: 8080,
      devices: ["cpu"],
      weights: "float32",
      logLevel: "info",
      drainMs: 10_000,
    });
    expect(config.modelDir).toEndWith("worker/model/demo");
    expect(config.dataDir).toEndWith("/.spangate");
    expect(Object.isFrozen(config)).toBe(true);
  });

  test("one worker for each device, the cores shared out", () => {
    const config = parseConfig({ SPANGATE_DEVICES: "cpu, cpu" });
    expect(config.devices).toEqual(["cpu", "cpu"]);
    expect(config.threadCount * 2).toBeLessThanOrEqual(Math.max(2, navigator.hardwareConcurrency));
  });

  test("cuda devices are named by number, each once, and not beside the cpu", () => {
    const devicesOf = (value: string) => parseConfig({ SPANGATE_DEVICES: value }).devices;
    expect(devicesOf("cuda:0,cuda:1, cuda:11")).toEqual(["cuda:0", "cuda:1", "cuda:11"]);
    expect(() => devicesOf("cuda:1,cuda:1")).toThrow("SPANGATE_DEVICES names a cuda device twice");
    expect(() => devicesOf("cuda:0,cpu")).toThrow("SPANGATE_DEVICES mixes cpu and cuda devices");
    for (const name of ["cuda", "cuda:", "cuda:01", "cuda:-1", "cuda:100", "CUDA:0"]) {
      expect(() => devicesOf(name)).toThrow(/^SPANGATE_DEVICES names devices as "cpu" or "cuda:0"/);
    }
  });

  test("judges become trees where an arity is set, and not for 0", () => {
    const arityOf = (value: string) => parseConfig({ SPANGATE_QUERY_REDUCE_ARITY: value }).queryReduceArity;
    expect(["", "0", "4"].map(arityOf)).toEqual([undefined, undefined, 4]);
  });

  test.each([
    ["SPANGATE_PORT", "http"],
    ["SPANGATE_PORT", "70000"],
    ["SPANGATE_DEVICES", "tpu"],
    ["SPANGATE_DEVICES", Array.from({ length: 17 }, () => "cpu").join()],
    ["SPANGATE_KV_BYTES", "1e9"],
    ["SPANGATE_KV_BYTES", "5"],
    ["SPANGATE_WEIGHTS", "int4"],
    ["SPANGATE_THREADS", "0"],
    ["SPANGATE_ADMIN_KEY", "short"],
    ["SPANGATE_ADMIN_KEY", "with spaces in it, long enough"],
    ["SPANGATE_LOG", "loud"],
    ["SPANGATE_DRAIN_SECONDS", "3601"],
    ["SPANGATE_DRAIN_SECONDS", "1.5"],
    ["SPANGATE_QUERY_REDUCE_ARITY", "1"],
    ["SPANGATE_QUERY_REDUCE_ARITY", "2000"],
  ])("%s=%s is an error that names the variable", (name, value) => {
    expect(() => parseConfig({ [name]: value })).toThrow(new RegExp(`^${name} `));
  });

  test("a worker gets its settings and no credential", () => {
    const env = {
      PATH: "/bin",
      SPANGATE_ADMIN_KEY: "k".repeat(20),
      SPANGATE_KV_TYPE: "float16",
      SPANGATE_KV_POSITIONS: "relocate",
      SPANGATE_DEBUG: "1",
      SECRET: "x",
    };
    const config = parseConfig({ ...env, SPANGATE_KV_BYTES: "2097152", SPANGATE_THREADS: "3" });
    const onGpu = parseConfig({ ...env, SPANGATE_KV_HOST_BYTES: "8GiB", SPANGATE_DEVICES: "cuda:0" });
    expect(workerEnvironment(onGpu, env, "cuda:0").SPANGATE_KV_HOST_BYTES).toBe("8589934592");
    expect(workerEnvironment(config, env, "cpu")).toEqual({
      ORT_DISABLE_TELEMETRY: "1",
      PATH: "/bin",
      SPANGATE_MODEL: config.modelDir,
      SPANGATE_DEVICE: "cpu",
      SPANGATE_WEIGHTS: "float32",
      SPANGATE_THREADS: "3",
      SPANGATE_KV_BYTES: "2097152",
      SPANGATE_KV_TYPE: "float16",
      SPANGATE_KV_POSITIONS: "relocate",
      SPANGATE_DEBUG: "1",
    });
  });
});
