/** Arguments as the driver reads them, launches, recorded graphs, and waiting for them. */
import { beforeEach, describe, expect, test } from "bun:test";
import { CudaContext } from "../../../worker/native/cuda/context.ts";
import { CudaError } from "../../../worker/native/cuda/driver.ts";
import { CudaEvent } from "../../../worker/native/cuda/event.ts";
import { captureGraph } from "../../../worker/native/cuda/graph.ts";
import { copyToHost, DeviceArena, fillDevice } from "../../../worker/native/cuda/memory.ts";
import { CudaModule } from "../../../worker/native/cuda/module.ts";
import { fake, openFake } from "./fake.ts";

let { context, stream } = openFake();
beforeEach(() => {
  ({ context, stream } = openFake());
});

const mixed = ["ptr", "i32", "u32", "f32", "i64", "u64", { structBytes: 20 }, "ptr"] as const;
const openModule = () => new CudaModule(context, Uint8Array.of(0x7f));
const hex = (bytes: number, value: bigint) =>
  Buffer.from(new BigUint64Array([BigInt.asUintN(64, value)]).buffer, 0, bytes).toString("hex");

describe("arguments", () => {
  const struct = Uint8Array.from({ length: 20 }, (_, i) => i + 1);
  const shape = { grid: [1], block: [1] } as const;
  const lastValues = () => fake.notes("cuLaunchKernel").at(-1)?.split(" : ")[1]?.split(" | ");

  test("reach the driver as the kernel's types say", () => {
    const kernel = openModule().kernel("mixed", mixed);
    const buffer = new DeviceArena(context, "arena", 4096).allocate("data", 512).slice(256);
    const packed = kernel.pack(buffer, -2, 4_000_000_000, 1.5, -3n, 2n ** 63n, struct, null);
    // Memory that a collection could move or free would show here.
    Bun.gc(true);
    kernel.launch(stream, shape, packed);
    expect(lastValues()).toEqual([
      hex(8, BigInt(buffer.pointer)),
      hex(4, -2n),
      hex(4, 4_000_000_000n),
      "0000c03f",
      hex(8, -3n),
      hex(8, 2n ** 63n),
      Buffer.from(struct).toString("hex"),
      hex(8, 0n),
    ]);
    kernel.launch(stream, shape, kernel.pack(null, 7, 0, Number.NEGATIVE_INFINITY, -5, 0, struct, buffer));
    const values = lastValues();
    expect([values?.[1], values?.[3], values?.[4], values?.[7]]).toEqual([
      hex(4, 7n),
      "000080ff",
      hex(8, -5n),
      hex(8, BigInt(buffer.pointer)),
    ]);
    expect(values?.[6]).toBe(Buffer.from(struct).toString("hex"));
  });

  test.each([
    [0, 1234, 'argument 0 of "mixed" must be a device buffer'],
    [0, undefined, "must be a device buffer"],
    [1, 2 ** 31, 'argument 1 of "mixed" must be an integer from -2147483648 to 2147483647, not 2147483648'],
    [1, 0.5, "must be an integer"],
    [1, undefined, "must be a number"],
    [2, -1, "must be an integer from 0 to 4294967295, not -1"],
    [3, Number.NaN, 'argument 3 of "mixed" must be a number, not NaN'],
    [3, undefined, "must be a number"],
    [4, 2n ** 63n, "must be from -9223372036854775808 to 9223372036854775807"],
    [4, 2 ** 53, "must be a safe integer or a bigint"],
    [5, -1, "must be from 0 to 18446744073709551615, not -1"],
    [6, new Uint8Array(19), "must be a Uint8Array of 20 bytes"],
  ])("argument %i refuses %p", (index, value, words) => {
    const kernel = openModule().kernel("mixed", mixed);
    const values: unknown[] = [null, 0, 0, 0, 0, 0, struct, null];
    values[index] = value;
    expect(() => (kernel.pack as (...values: unknown[]) => unknown).apply(kernel, values)).toThrow(words);
  });

  test("must be as many as the signature has, and packed for this kernel", () => {
    const module = openModule();
    const kernel = module.kernel("increment", ["ptr", "i32"]);
    expect(() => (kernel.pack as (...values: unknown[]) => unknown)(null)).toThrow(
      '"increment" takes 2 arguments, not 1',
    );
    const other = module.kernel("increment", ["ptr", "i32"]).pack(null, 1);
    expect(() => kernel.launch(stream, shape, other)).toThrow('the arguments are not packed for "increment"');
  });
});

describe("a kernel", () => {
  test("must have the declared parameters", () => {
    const module = openModule();
    expect(() => module.kernel("increment", ["ptr"])).toThrow(
      'parameters of kernel "increment" have bytes (8, 4), the declared ones (8)',
    );
    expect(() => module.kernel("increment", ["ptr", "i64"])).toThrow("the declared ones (8, 8)");
    expect(() => module.kernel("increment", ["ptr", "i32", "i32"])).toThrow(TypeError);
    expect(() => module.kernel("nothing", ["ptr"])).toThrow("have bytes (), the declared ones (8)");
    expect(() => module.kernel("absent", [])).toThrow('cuModuleGetFunction ("absent")');
  });

  test("is launched as it was told", () => {
    const kernel = openModule().kernel("nothing", []);
    const packed = kernel.pack();
    kernel.launch(stream, { grid: [70_000, 2, 3], block: [4, 5, 6], sharedBytes: 7 }, packed);
    kernel.launch(stream, { grid: [1], block: [512] }, packed);
    expect(fake.notes("cuLaunchKernel")).toEqual([
      "cuLaunchKernel nothing 70000 2 3 4 5 6 7",
      "cuLaunchKernel nothing 1 1 1 512 1 1 0",
    ]);
    expect(kernel.staticSharedBytes).toBe(1024);
    fake.fail("cuLaunchKernel", 1);
    expect(() => kernel.launch(stream, { grid: [1], block: [1] }, packed)).toThrow('cuLaunchKernel ("nothing")');
  });

  test("may begin before the one before it ends, where the device can", () => {
    const kernel = openModule().kernel("nothing", []);
    const shape = { grid: [70_000, 2, 3], block: [4, 5, 6], sharedBytes: 7, overlapsPrevious: true } as const;
    kernel.launch(stream, shape, kernel.pack());
    kernel.launch(stream, { grid: [1], block: [8], overlapsPrevious: true }, kernel.pack());
    // The attribute's number in cuda.h, and that it is on.
    expect(fake.notes("cuLaunchKernelEx")).toEqual(["cuLaunchKernelEx 6=1 ", "cuLaunchKernelEx 6=1 "]);
    expect(fake.notes("cuLaunchKernel")).toEqual([
      "cuLaunchKernel nothing 70000 2 3 4 5 6 7",
      "cuLaunchKernel nothing 1 1 1 8 1 1 0",
    ]);
    fake.fail("cuLaunchKernelEx", 1);
    expect(() => kernel.launch(stream, shape, kernel.pack())).toThrow('cuLaunchKernelEx ("nothing")');
    fake.setCapability(89);
    const older = new CudaModule(new CudaContext(context.driver, 0), Uint8Array.of(0x7f)).kernel("nothing", []);
    older.launch(stream, { grid: [1], block: [9], overlapsPrevious: true }, older.pack());
    expect(fake.notes().at(-1)).toBe("cuLaunchKernel nothing 1 1 1 9 1 1 0");
  });

  test.each([
    [{ grid: [0], block: [1] }, "grid x"],
    [{ grid: [2 ** 31], block: [1] }, "grid x"],
    [{ grid: [1, 65_536], block: [1] }, "grid y"],
    [{ grid: [1, 1, 65_536], block: [1] }, "grid z"],
    [{ grid: [Number.NaN], block: [1] }, "grid x"],
    [{ grid: [1], block: [0] }, "block x"],
    [{ grid: [1], block: [1, 1, 65] }, "block z"],
    [{ grid: [1], block: [32, 17] }, "threads in a block"],
    [{ grid: [1], block: [1], sharedBytes: 49_153 }, "sharedBytes"],
    [{ grid: [1], block: [1], sharedBytes: 0.5 }, "sharedBytes"],
  ])("refuses %j", (shape, words) => {
    const kernel = openModule().kernel("nothing", []);
    expect(() => kernel.launch(stream, shape as never, kernel.pack())).toThrow(`${words} of "nothing"`);
    expect(fake.notes("cuLaunchKernel")).toEqual([]);
  });

  test("takes more shared memory once it was set, up to what the device has", () => {
    const kernel = openModule().kernel("nothing", []);
    // 1,024 bytes are the kernel's own, of 232,448.
    expect(() => kernel.setMaxSharedBytes(231_425)).toThrow(RangeError);
    kernel.setMaxSharedBytes(231_424);
    expect(fake.notes("cuFuncSetAttribute")).toEqual(["cuFuncSetAttribute nothing 8 231424"]);
    kernel.launch(stream, { grid: [1], block: [1], sharedBytes: 231_424 }, kernel.pack());
  });
});

describe("a graph", () => {
  function counting() {
    const kernel = openModule().kernel("increment", ["ptr", "i32"]);
    const buffer = new DeviceArena(context, "arena", 256).allocate("counters", 8);
    fillDevice(stream, buffer);
    const launch = (count = 2) => kernel.launch(stream, { grid: [1], block: [1] }, kernel.pack(buffer, count));
    const read = () => {
      const out = new Int32Array(2);
      copyToHost(stream, out, buffer);
      return [...out];
    };
    return { launch, read };
  }

  test("replays what was recorded", () => {
    const { launch, read } = counting();
    const graph = captureGraph(stream, () => {
      launch();
      launch(1);
    });
    expect(read()).toEqual([0, 0]);
    graph.upload(stream);
    graph.launch(stream);
    graph.launch(stream);
    expect(read()).toEqual([4, 2]);
    expect(fake.notes("cuStreamBeginCapture_v2")).toEqual(["cuStreamBeginCapture_v2 1"]);
    graph.close();
    expect(fake.liveGraphs()).toBe(0);
  });

  test("that cannot be recorded leaves the stream usable and nothing behind", () => {
    const { launch, read } = counting();
    const record = () => {
      launch();
      throw new TypeError("on purpose");
    };
    expect(() => captureGraph(stream, record)).toThrow("on purpose");
    expect(() => captureGraph(stream, () => stream.synchronize())).toThrow(CudaError);
    fake.fail("cuStreamEndCapture", 1);
    expect(() => captureGraph(stream, launch)).toThrow("cuStreamEndCapture");
    fake.reset();
    fake.fail("cuGraphInstantiateWithFlags", 2);
    expect(() => captureGraph(stream, launch)).toThrow("cuGraphInstantiateWithFlags");
    expect(fake.liveGraphs()).toBe(0);
    launch();
    expect(read()).toEqual([1, 1]);
  });
});

describe("an event", () => {
  test("is awaited from the event loop", async () => {
    const event = new CudaEvent(context);
    stream.record(event);
    fake.setPendingQueries(3);
    expect(event.isDone()).toBe(false);
    let others = 0;
    const other = (): void => {
      others++;
      if (others < 1000 && !isOver) setImmediate(other);
    };
    let isOver = false;
    setImmediate(other);
    fake.setPendingQueries(20);
    await event.completion({ spinMs: 0 });
    isOver = true;
    expect(others).toBeGreaterThan(5);
    expect(event.isDone()).toBe(true);
    event.close();
  });

  test("a short wait spins and does not leave the turn", async () => {
    const event = new CudaEvent(context);
    let hasTurned = false;
    setImmediate(() => {
      hasTurned = true;
    });
    fake.setPendingQueries(3);
    await event.completion({ spinMs: 1000 });
    expect(hasTurned).toBe(false);
  });

  test("a fault on the device rejects", async () => {
    const event = new CudaEvent(context);
    fake.fail("cuEventQuery", 1);
    fake.setPendingQueries(2);
    await expect(event.completion({ spinMs: 0 })).rejects.toThrow(CudaError);
  });

  test("measures time only where it was asked to", () => {
    new CudaEvent(context, { timing: true });
    new CudaEvent(context);
    expect(fake.notes("cuEventCreate")).toEqual(["cuEventCreate 0", "cuEventCreate 2"]);
    stream.synchronize();
    stream.close();
    expect(fake.notes().slice(-2)).toEqual(["cuStreamSynchronize", "cuStreamDestroy_v2"]);
  });
});
