/**
 * The CUDA host layer on a device: memory, launches, graphs, matrix products, errors, and what calls cost. Needs no
 * package: `bun test/gpu/host.ts [folder of NVIDIA's libraries]...`; writes $OUT/host.json where OUT is set.
 */
import { join } from "node:path";
import { CubinCache } from "../../worker/native/cuda/compile/cubin-cache.ts";
import { architectureName, CudaCompileError, Nvrtc } from "../../worker/native/cuda/compile/nvrtc.ts";
import { CudaContext } from "../../worker/native/cuda/context.ts";
import { CublasLt } from "../../worker/native/cuda/cublaslt.ts";
import { CudaDriver, CudaError, versionText } from "../../worker/native/cuda/driver.ts";
import { CudaEvent } from "../../worker/native/cuda/event.ts";
import { captureGraph } from "../../worker/native/cuda/graph.ts";
import { copyToDevice, copyToHost, DeviceArena, fillDevice, PinnedBuffer } from "../../worker/native/cuda/memory.ts";
import { CudaModule } from "../../worker/native/cuda/module.ts";
import { CudaStream } from "../../worker/native/cuda/stream.ts";
import { copyOnDevice, millisecondsBetween } from "./driver-calls.ts";
import { extraBytes, hostKernels } from "./host-kernels.ts";
import { checkProducts, timeProducts } from "./host-products.ts";
import { assertThat, errorOf, medianMicroseconds, Report } from "./report.ts";

const folders = process.argv.slice(2);
const mebibyte = 2 ** 20;
const report = new Report();
const driver = new CudaDriver();
const context = new CudaContext(driver, 0);
const { device } = context;
const stream = new CudaStream(context);
const arena = new DeviceArena(context, "checks", 1024 * mebibyte);
/** Page-locked memory of so many bytes. */
const pinned = (byteLength: number): ArrayBuffer => new PinnedBuffer(context, "staging", byteLength).bytes.buffer;
const nvrtc = new Nvrtc(driver.version, { folders });
const architecture = architectureName(device.computeCapability);

await report.check("device", () => {
  const freeBytes = context.freeBytes();
  assertThat(device.multiprocessorCount > 0 && device.computeCapability >= 70, JSON.stringify(device));
  assertThat(freeBytes > 0, `${freeBytes} bytes free`);
  const versions = `driver ${versionText(driver.version)}, NVRTC ${versionText(nvrtc.version)}`;
  return `${JSON.stringify(device)} ${versions}, ${Math.round(freeBytes / mebibyte)} MiB free`;
});

await report.check("copies", () => {
  const source = new Float32Array(pinned(4 << 18)).map((_, i) => Math.sin(i));
  const staged = new Float32Array(pinned(4 << 18));
  staged.set(source);
  const [first, second] = [arena.allocate("first", source.byteLength), arena.allocate("second", source.byteLength)];
  fillDevice(stream, second, 0xff);
  copyToDevice(stream, first, staged);
  copyOnDevice(stream, second, first);
  fillDevice(stream, second.slice(4096, 4096), 0);
  const back = new Float32Array(pinned(4 << 18));
  copyToHost(stream, back, second);
  stream.synchronize();
  const isRight = back.every((value, i) => value === (i >= 1024 && i < 2048 ? 0 : Math.fround(source[i] ?? 0)));
  assertThat(isRight, "the bytes that came back are others");
  errorOf(RangeError, () => copyToDevice(stream, first, staged, 4));
  errorOf(RangeError, () => copyToHost(stream, back, second, 4));
  errorOf(RangeError, () => first.slice(4, source.byteLength));
  return "1 MiB there, across and back";
});

const cache = new CubinCache();
const target = { architecture, driverVersion: driver.version, compilerVersion: nvrtc.version };
const cubin = await cache.load(hostKernels, target, nvrtc);
const module = new CudaModule(context, cubin);
const nothing = module.kernel("nothing", []);
const increment = module.kernel("increment", ["ptr"]);

await report.check("compile", async () => {
  const compileUs = medianMicroseconds(1, 1, () => nvrtc.compile(hostKernels, architecture));
  const again = await cache.load(hostKernels, target, {
    compile: () => {
      throw new Error("compiled again");
    },
  });
  assertThat(Buffer.from(again).equals(Buffer.from(cubin)), "the cubin on the disk is another");
  const { log } = errorOf(CudaCompileError, () =>
    nvrtc.compile({ ...hostKernels, text: "__global__ void k() { missing_name = 1; }" }, architecture),
  );
  assertThat(log.includes("missing_name"), `the log says nothing of it: ${log}`);
  return report.figure("compileMs", compileUs / 1000);
});

await report.check("launch with every kind of argument", () => {
  const signature = ["ptr", "i32", "f32", "i64", { structBytes: 24 }, "ptr", "u32"] as const;
  const affine = module.kernel("affine", signature);
  const count = 1000;
  const values = Float32Array.from({ length: count }, (_, i) => i / 8);
  const data = arena.allocate("data", values.byteLength);
  const addend = arena.allocate("addend", values.byteLength);
  copyToDevice(stream, data, values);
  copyToDevice(stream, addend, values);
  const first = affine.pack(data, count, 0.5, -7n, extraBytes(11, 0.25, 100), null, 0);
  const packed = affine.pack(data, count, 0.5, -7n, extraBytes(11, 0.25, 100), addend, 1);
  const shape = { grid: [Math.ceil(count / 128)], block: [128] } as const;
  affine.launch(stream, shape, first);
  affine.launch(stream, shape, packed);
  const out = new Float32Array(count);
  copyToHost(stream, out, data);
  stream.synchronize();
  const once = (x: number, y: number) => x * 0.5 - 7 + 11 + 0.25 + 100 + 3 + y;
  values.forEach((x, i) => {
    assertThat(out[i] === 2 * once(once(x, 0), x), `element ${i} is ${out[i]}, not ${2 * once(once(x, 0), x)}`);
  });
  errorOf(TypeError, () => module.kernel("affine", ["ptr", "i32"]));
  errorOf(TypeError, () => module.kernel("affine", [...signature.slice(0, 6), "u64"] as never));
  errorOf(RangeError, () => affine.launch(stream, { grid: [0], block: [128] }, packed));
  errorOf(RangeError, () => affine.launch(stream, { grid: [1], block: [2048] }, packed));
  errorOf(RangeError, () => affine.launch(stream, { ...shape, sharedBytes: 49 * 1024 }, packed));
  const missing = errorOf(CudaError, () => module.kernel("no_such", []));
  assertThat(missing.codeName === "CUDA_ERROR_NOT_FOUND", missing.message);
  return `a kernel that is not there: ${missing.message}`;
});

await report.check("dynamic shared memory", () => {
  const reverse = module.kernel("reverse", ["ptr", "i32"]);
  const bytes = 96 * 1024;
  const values = Float32Array.from({ length: bytes / 4 }, (_, i) => i);
  const data = arena.allocate("reversed", bytes);
  copyToDevice(stream, data, values);
  reverse.setMaxSharedBytes(bytes);
  reverse.launch(stream, { grid: [1], block: [256], sharedBytes: bytes }, reverse.pack(data, values.length));
  const out = new Float32Array(values.length);
  copyToHost(stream, out, data);
  stream.synchronize();
  assertThat(
    out.every((value, i) => value === values.length - 1 - i),
    "wrong order",
  );
  errorOf(RangeError, () => reverse.setMaxSharedBytes(device.maxSharedBytesPerBlock + 1));
  return "96 KiB in a thread block";
});

await report.check("graphs", () => {
  const counters = arena.allocate("counters", 4 * 32);
  fillDevice(stream, counters);
  const packed = increment.pack(counters);
  const shape = { grid: [1], block: [32] } as const;
  const graph = captureGraph(stream, () => {
    for (let i = 0; i < 300; i++) increment.launch(stream, shape, packed);
  });
  graph.upload(stream);
  for (let i = 0; i < 10; i++) graph.launch(stream);
  const out = new Int32Array(pinned(4 * 32));
  copyToHost(stream, out, counters);
  stream.synchronize();
  assertThat(
    out.every((value) => value === 3000),
    `counted ${out}`,
  );
  errorOf(TypeError, () =>
    captureGraph(stream, () => {
      throw new TypeError("on purpose");
    }),
  );
  const broken = errorOf(CudaError, () => captureGraph(stream, () => stream.synchronize()));
  increment.launch(stream, shape, packed);
  stream.synchronize();
  const graphUs = medianMicroseconds(30, 1, () => {
    graph.launch(stream);
    stream.synchronize();
  });
  graph.close();
  return `${report.figure("graphOf300Us", graphUs)}; recording what cannot be: ${broken.message}`;
});

await report.check("matrix products", () => {
  const lt = new CublasLt(context, arena.allocate("workspace", 32 * mebibyte), { folders });
  const words = checkProducts(stream, arena, lt);
  const times = timeProducts(stream, context, lt, report);
  lt.close();
  return `${words}; ${times}`;
});

await report.check("completion leaves the event loop free", async () => {
  const spin = module.kernel("spin", ["i64"]);
  const event = new CudaEvent(context);
  let ticks = 0;
  const timer = setInterval(() => ticks++, 1);
  spin.launch(stream, { grid: [1], block: [1] }, spin.pack(100_000_000));
  stream.record(event);
  assertThat(!event.isDone(), "done before it began");
  await event.completion();
  clearInterval(timer);
  assertThat(ticks > 5 && event.isDone(), `${ticks} ticks of a timer`);
  event.close();
  return `${ticks} ticks of a timer in 100 million cycles`;
});

await report.check("out of memory is an error with a name", () => {
  const error = errorOf(CudaError, () => new DeviceArena(context, "too much", 2 ** 46));
  assertThat(error.isOutOfMemory, error.message);
  errorOf(RangeError, () => arena.allocate("rest", arena.leftBytes + 1));
  return error.message;
});

await report.check("costs", () => {
  const version = new Int32Array(1);
  const ffiUs = medianMicroseconds(5, 100_000, () => {
    for (let i = 0; i < 100_000; i++) driver.symbols.cuDriverGetVersion(version);
  });
  const packed = nothing.pack();
  const shape = { grid: [1], block: [32] } as const;
  const launchUs = medianMicroseconds(20, 500, () => {
    for (let i = 0; i < 500; i++) nothing.launch(stream, shape, packed);
  });
  stream.synchronize();
  const event = new CudaEvent(context);
  stream.record(event);
  stream.synchronize();
  const queryUs = medianMicroseconds(5, 1000, () => {
    for (let i = 0; i < 1000; i++) event.isDone();
  });
  const roundTripUs = medianMicroseconds(50, 1, () => {
    nothing.launch(stream, shape, packed);
    stream.synchronize();
  });
  event.close();
  const figures = { ffiCallNs: ffiUs * 1000, launchUs, eventQueryUs: queryUs, launchAndWaitUs: roundTripUs };
  return Object.entries(figures)
    .map(([name, value]) => report.figure(name, value))
    .join(", ");
});

await report.check("bandwidth", () => {
  const bytes = 256 * mebibyte;
  const [here, there] = [arena.allocate("here", bytes), arena.allocate("there", bytes)];
  const staging = new Uint8Array(pinned(bytes));
  const pageable = new Uint8Array(bytes).fill(1);
  const [start, end] = [new CudaEvent(context, { timing: true }), new CudaEvent(context, { timing: true })];
  const rate = (name: string, run: () => void): string => {
    run();
    stream.record(start);
    for (let i = 0; i < 4; i++) run();
    stream.record(end);
    return report.figure(name, (4 * bytes) / millisecondsBetween(start, end) / 1e6);
  };
  return [
    rate("toDeviceGBs", () => copyToDevice(stream, here, staging)),
    rate("toDevicePageableGBs", () => copyToDevice(stream, here, pageable)),
    rate("toHostGBs", () => copyToHost(stream, staging, here)),
    rate("onDeviceReadPlusWrite2GBs", () => copyOnDevice(stream, there, here)),
  ].join(", ");
});

// The last one: nothing works in a context after a fault.
await report.check("a fault on the device is an error with a name", () => {
  const fault = module.kernel("fault", ["ptr"]);
  fault.launch(stream, { grid: [1], block: [1] }, fault.pack(null));
  const error = errorOf(CudaError, () => stream.synchronize());
  assertThat(error.codeName === "CUDA_ERROR_ILLEGAL_ADDRESS", error.message);
  return error.message;
});

const { OUT } = process.env;
process.exitCode = await report.end(OUT === undefined ? undefined : join(OUT, "host.json"));
