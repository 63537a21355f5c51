/** Finding the driver, and what it answers: sentences for whoever starts the server, errors with the driver's words. */
import { beforeEach, expect, test } from "bun:test";
import { CudaContext } from "../../../worker/native/cuda/context.ts";
import { CudaDriver, CudaError, versionText } from "../../../worker/native/cuda/driver.ts";
import { CudaUnavailable, libraryPaths, toolkitNames } from "../../../worker/native/cuda/library-names.ts";
import { fake, fakePath, openFake } from "./fake.ts";

beforeEach(() => fake.reset());

function unavailable(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    if (error instanceof CudaUnavailable) return error.message;
    throw error;
  }
  throw new Error("nothing was thrown");
}

const openDriver = () => new CudaDriver({ libraryNames: [fakePath] });

test("a machine without a driver is told so in one sentence", () => {
  const words = unavailable(() => new CudaDriver({ libraryNames: ["libcuda-absent.so.1", "libcuda-absent.so"] }));
  expect(words).toBe("no NVIDIA driver: libcuda-absent.so.1 was not found");
});

test("names are tried in order, until one is there", () => {
  const driver = new CudaDriver({ libraryNames: ["libcuda-absent.so.1", fakePath, "libcuda-absent.so"] });
  expect(driver.version).toBe(13_000);
  expect(libraryPaths(["a", "b"], ["folder"]).slice(0, 4)).toEqual(["a", "b", "folder/a", "folder/b"]);
});

test("no toolkit library is newer than the driver", () => {
  expect(toolkitNames("nvrtc", 13_010)).toEqual(["libnvrtc.so.13", "libnvrtc.so.12"]);
  expect(toolkitNames("cublasLt", 12_080)).toEqual(["libcublasLt.so.12"]);
});

test("a library that is no driver is named, and no other is tried", () => {
  const words = unavailable(() => new CudaDriver({ libraryNames: ["libc.so.6", fakePath] }));
  expect(words).toStartWith("no NVIDIA driver: libc.so.6 cannot be used: ");
  expect(words).toMatch(/cuInit|cuDriverGetVersion/);
});

test("an old driver is told which version is needed", () => {
  fake.setVersion(11_080);
  expect(unavailable(openDriver)).toBe(
    "the NVIDIA driver is too old: it supports CUDA 11.8, Spangate needs 12.4 or newer",
  );
  fake.setVersion(12_040);
  expect(openDriver().version).toBe(12_040);
});

test("a driver without a device says why", () => {
  fake.fail("cuInit", 100);
  expect(unavailable(openDriver)).toBe(
    "no usable NVIDIA device: cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected",
  );
});

test("a device that does not exist is named with how many there are", () => {
  const driver = openDriver();
  expect(unavailable(() => new CudaContext(driver, 2))).toBe(
    "cuda:2 does not exist: the NVIDIA driver finds 2 devices",
  );
  fake.setDeviceCount(1);
  expect(unavailable(() => new CudaContext(openDriver(), 1))).toBe(
    "cuda:1 does not exist: the NVIDIA driver finds 1 device",
  );
  expect(() => new CudaContext(driver, -1)).toThrow(RangeError);
  expect(() => new CudaContext(driver, Number.NaN)).toThrow(RangeError);
});

test("a device that is too old is named with what it has and what is needed", () => {
  const driver = openDriver();
  const before = fake.liveObjects();
  fake.setCapability(75);
  expect(unavailable(() => new CudaContext(driver, 1))).toBe(
    "cuda:1 (Fake 1) has compute capability 7.5, Spangate needs 8.0 or newer",
  );
  expect(fake.liveObjects()).toBe(before);
  fake.setCapability(80);
  new CudaContext(driver, 1).close();
});

test("a context belongs to the device that was asked for", () => {
  const context = new CudaContext(openDriver(), 1);
  expect(context.device).toMatchObject({
    index: 1,
    name: "Fake 1",
    computeCapability: 90,
    multiprocessorCount: 132,
    maxSharedBytesPerBlock: 232_448,
  });
  expect(context.freeBytes()).toBe(100 * 2 ** 30);
  context.close();
  context.close();
  expect(fake.notes().slice(-3)).toEqual([
    "cuDevicePrimaryCtxRetain 71",
    "cuCtxSetCurrent 71",
    "cuDevicePrimaryCtxRelease_v2 71",
  ]);
});

test("an error carries the call, the number and the driver's words", () => {
  const { driver } = openFake();
  const errorOf = (status: number): unknown => {
    try {
      driver.check("cuSomething", status);
      return undefined;
    } catch (error) {
      return error;
    }
  };
  expect(errorOf(0)).toBeUndefined();
  expect(errorOf(2)).toBeInstanceOf(CudaError);
  expect(errorOf(2)).toMatchObject({
    codeName: "CUDA_ERROR_OUT_OF_MEMORY",
    isOutOfMemory: true,
    message: "cuSomething: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory",
  });
  expect(errorOf(1)).toMatchObject({ message: "cuSomething: CUDA_ERROR_INVALID_VALUE (1)", isOutOfMemory: false });
  expect(errorOf(987)).toMatchObject({ message: "cuSomething: unknown CUDA error (987)" });
});

test("versions as people write them", () => {
  expect([12_040, 13_000, 11_080].map(versionText)).toEqual(["12.4", "13.0", "11.8"]);
});
