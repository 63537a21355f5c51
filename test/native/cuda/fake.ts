/** NVIDIA's libraries as one shared library that needs no device; the C++ files say what they do. */
import { CString, dlopen } from "bun:ffi";
import { existsSync, mkdirSync, readFileSync, renameSync } from "node:fs";
import { join } from "node:path";
import { cacheFolder } from "../../../places/places.ts";
import { CudaContext } from "../../../worker/native/cuda/context.ts";
import { CudaDriver } from "../../../worker/native/cuda/driver.ts";
import { CudaStream } from "../../../worker/native/cuda/stream.ts";

/** Compiled once for its text: the files that need it are tested in processes of their own. */
function compile(): string {
  const sources = ["fake-driver.cpp", "fake-libraries.cpp"].map((file) => join(import.meta.dir, file));
  const hasher = new Bun.CryptoHasher("sha256").update(process.arch).update(readFileSync(import.meta.path));
  for (const source of sources) hasher.update(readFileSync(source));
  const path = join(cacheFolder(), `fake-cuda-${hasher.digest("hex").slice(0, 16)}.so`);
  if (existsSync(path)) return path;
  mkdirSync(cacheFolder(), { recursive: true });
  const part = `${path}.${crypto.randomUUID()}`;
  const compiler = ["g++", "clang++", "c++"].find((command) => Bun.which(command) !== null) ?? "c++";
  const child = Bun.spawnSync([compiler, "-std=c++17", "-O1", "-shared", "-fPIC", ...sources, "-o", part]);
  if (child.exitCode !== 0) throw new Error(child.stderr.toString());
  renameSync(part, path);
  return path;
}

export const fakePath = compile();

const { symbols } = dlopen(fakePath, {
  fake_notes: { args: [], returns: "ptr" },
  fake_reset: { args: [], returns: "void" },
  fake_fail: { args: ["ptr", "i32", "i32"], returns: "void" },
  fake_set_version: { args: ["i32"], returns: "void" },
  fake_set_device_count: { args: ["i32"], returns: "void" },
  fake_set_capability: { args: ["i32"], returns: "void" },
  fake_set_free_bytes: { args: ["u64"], returns: "void" },
  fake_add_kernel: { args: ["ptr", "ptr", "i32"], returns: "void" },
  fake_set_pending_queries: { args: ["i32"], returns: "void" },
  fake_live_bytes: { args: [], returns: "u64" },
  fake_live_objects: { args: [], returns: "i32" },
  fake_live_graphs: { args: [], returns: "i32" },
  fake_live_descriptors: { args: [], returns: "i32" },
});

export const fake = {
  /** One line for each call since the last reset: its name and what it was given. */
  notes(call?: string): string[] {
    const text = symbols.fake_notes();
    const lines = text === null ? [] : new CString(text as never).toString().split("\n").filter(Boolean);
    return call === undefined ? lines : lines.filter((line) => line.split(" ")[0] === call);
  },
  reset: () => symbols.fake_reset(),
  /** Every further call of that name answers `status`, until the next reset; with `run` the run-th one alone. */
  fail: (call: string, status: number, run = 0) => symbols.fake_fail(Buffer.from(`${call}\0`), status, run),
  setVersion: (version: number) => symbols.fake_set_version(version),
  setDeviceCount: (count: number) => symbols.fake_set_device_count(count),
  /** Compute capability times ten. */
  setCapability: (value: number) => symbols.fake_set_capability(value),
  /** What the device has for allocations from now on. */
  setFreeBytes: (bytes: number) => symbols.fake_set_free_bytes(bytes),
  /** A kernel that does nothing, with parameters of these sizes. */
  addKernel: (name: string, sizes: readonly number[]) =>
    symbols.fake_add_kernel(Buffer.from(`${name}\0`), BigUint64Array.from(sizes, BigInt), sizes.length),
  /** So many queries answer that the work is still under way. */
  setPendingQueries: (count: number) => symbols.fake_set_pending_queries(count),
  liveBytes: () => Number(symbols.fake_live_bytes()),
  /** Contexts, streams, events, modules and handles that were made and not given back. */
  liveObjects: () => symbols.fake_live_objects(),
  liveGraphs: () => symbols.fake_live_graphs(),
  liveDescriptors: () => symbols.fake_live_descriptors(),
};

/** A stream of a context on the fake device. */
export function openFake(): { driver: CudaDriver; context: CudaContext; stream: CudaStream } {
  fake.reset();
  const driver = new CudaDriver({ libraryNames: [fakePath] });
  const context = new CudaContext(driver, 0);
  return { driver, context, stream: new CudaStream(context) };
}
