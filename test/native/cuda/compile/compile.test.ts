/** The run-time compiler and the cubins kept on disk. */
import { afterAll, beforeEach, describe, expect, test } from "bun:test";
import { link, mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CubinCache, type CubinTarget, cubinFileName } from "../../../../worker/native/cuda/compile/cubin-cache.ts";
import {
  architectureName,
  CudaCompileError,
  type CudaSource,
  Nvrtc,
} from "../../../../worker/native/cuda/compile/nvrtc.ts";
import { CudaError } from "../../../../worker/native/cuda/driver.ts";
import { CudaUnavailable } from "../../../../worker/native/cuda/library-names.ts";
import { fake, fakePath } from "../fake.ts";

const folder = await mkdtemp(join(tmpdir(), "spangate-cubins-"));
afterAll(() => rm(folder, { recursive: true, force: true }));
beforeEach(() => fake.reset());

const source: CudaSource = {
  name: "norm.cu",
  text: "void k() {}",
  headers: { "a.cuh": "A", "b.cuh": "B" },
  options: ["-O1"],
};
const target: CubinTarget = { architecture: "sm_90a", driverVersion: 13_000, compilerVersion: 13_000 };
const openNvrtc = () => new Nvrtc(13_000, { libraryNames: [fakePath] });

describe("the compiler", () => {
  test("is given the source, its headers, and the architecture before the options", () => {
    const nvrtc = openNvrtc();
    expect(nvrtc.version).toBe(13_000);
    const cubin = nvrtc.compile(source, "sm_90a");
    expect(new TextDecoder().decode(cubin.subarray(64))).toBe("void k() {}");
    expect(fake.notes()).toEqual([
      "nvrtcCreateProgram norm.cu a.cuh=A b.cuh=B",
      "nvrtcCompileProgram --gpu-architecture=sm_90a -O1",
      "nvrtcDestroyProgram",
    ]);
  });

  test("shows its log where the source is refused, and frees the program", () => {
    const compile = () => openNvrtc().compile({ ...source, text: "#error" }, "sm_90a");
    expect(compile).toThrow(CudaCompileError);
    expect(compile).toThrow("norm.cu could not be compiled:\nfake.cu(1): error: on purpose");
    expect(fake.notes("nvrtcDestroyProgram")).toHaveLength(2);
  });

  test("names any other failure, with what the compiler said", () => {
    fake.fail("nvrtcCompileProgram", 5);
    const compile = () => openNvrtc().compile(source, "sm_1");
    expect(compile).toThrow(CudaError);
    expect(compile).toThrow("nvrtcCompileProgram: NVRTC_ERROR_INVALID_OPTION (5): what the compiler said");
  });

  test("is not given text that C would cut", () => {
    expect(() => openNvrtc().compile({ ...source, text: "a\0b" }, "sm_90a")).toThrow(RangeError);
  });

  test("that is not there is one sentence", () => {
    const open = () => new Nvrtc(13_000, { libraryNames: ["libnvrtc-absent.so.13"] });
    expect(open).toThrow(CudaUnavailable);
    expect(open).toThrow("no CUDA compiler (the toolkit's NVRTC): libnvrtc-absent.so.13 was not found");
  });

  test("architectures with what only they have, from Hopper on", () => {
    expect([75, 80, 89, 90, 100, 120].map(architectureName)).toEqual([
      ...["sm_75", "sm_80", "sm_89"],
      ...["sm_90a", "sm_100a", "sm_120a"],
    ]);
  });
});

describe("a cubin's file name", () => {
  const name = cubinFileName(source, target);

  test("says what it is, and is the same for the same content", () => {
    expect(name).toMatch(/^norm-sm_90a-[0-9a-f]{24}\.cubin$/);
    expect(cubinFileName({ ...source, headers: { "b.cuh": "B", "a.cuh": "A" } }, { ...target })).toBe(name);
  });

  test("changes with each part that goes into it", () => {
    const others: [CudaSource, CubinTarget][] = [
      [{ ...source, text: "void k() { }" }, target],
      [{ ...source, name: "norm2.cu" }, target],
      [{ ...source, headers: { "a.cuh": "A", "b.cuh": "C" } }, target],
      [{ ...source, headers: { "a.cuh": "A", "c.cuh": "B" } }, target],
      [{ ...source, headers: { "a.cuh": "A" } }, target],
      [{ ...source, options: ["-O", "1"] }, target],
      [{ ...source, options: [] }, target],
      [source, { ...target, architecture: "sm_90" }],
      [source, { ...target, driverVersion: 13_010 }],
      [source, { ...target, compilerVersion: 13_010 }],
    ];
    const names = [name, ...others.map(([each, where]) => cubinFileName(each, where))];
    expect(new Set(names).size).toBe(names.length);
  });

  test("stays within its folder", () => {
    expect(cubinFileName({ ...source, name: "../x/y.cu" }, target)).toStartWith("___x_y-sm_90a-");
  });
});

describe("the cache", () => {
  /** A folder of its own that does not exist yet, and a compiler that counts. */
  async function probe() {
    const root = join(await mkdtemp(join(folder, "probe-")), "cache");
    const nvrtc = openNvrtc();
    let count = 0;
    const compiler = {
      compile: (...args: Parameters<Nvrtc["compile"]>) => {
        count++;
        return nvrtc.compile(...args);
      },
    };
    const load = (which = source) => new CubinCache(root).load(which, target, compiler);
    return { root, path: join(root, cubinFileName(source, target)), load, count: () => count };
  }

  test("compiles once and leaves one whole file", async () => {
    const { root, path, load, count } = await probe();
    const first = await load();
    expect(await load()).toEqual(first);
    expect(count()).toBe(1);
    expect(await readdir(root)).toHaveLength(1);
    expect(Buffer.from(first).equals(await Bun.file(path).bytes())).toBe(true);
  });

  test("several at once end with one file and no litter", async () => {
    const { root, load } = await probe();
    const all = await Promise.all(Array.from({ length: 8 }, () => load()));
    for (const cubin of all) expect(cubin).toEqual(all[0] as Uint8Array);
    expect(await readdir(root)).toHaveLength(1);
  });

  test("a cut, empty or foreign file is compiled again", async () => {
    const { path, load, count } = await probe();
    const whole = await load();
    const damaged = [whole.subarray(0, whole.length - 1), new Uint8Array(0), Buffer.from("x".repeat(200))];
    for (const [index, bytes] of damaged.entries()) {
      await writeFile(path, bytes);
      expect(await load()).toEqual(whole);
      expect(count()).toBe(index + 2);
    }
    expect(await load()).toEqual(whole);
    expect(count()).toBe(4);
  });

  test("a file is replaced, never written into: who reads the old one keeps it whole", async () => {
    const { path, load } = await probe();
    await load();
    await writeFile(path, "old");
    await link(path, `${path}.reader`);
    await load();
    expect(await Bun.file(`${path}.reader`).text()).toBe("old");
  });

  test("a file that cannot be put in place leaves no part behind", async () => {
    const { root, path, load } = await probe();
    await mkdir(path, { recursive: true });
    await expect(load()).rejects.toThrow();
    expect(await readdir(root)).toHaveLength(1);
  });

  test("a source that is refused leaves nothing", async () => {
    const { root, load } = await probe();
    await load();
    await expect(load({ ...source, text: "#error" })).rejects.toThrow(CudaCompileError);
    expect(await readdir(root)).toHaveLength(1);
  });
});
