/** What measurements ask of the driver and the worker does not: times between events, and copies on the device. */
import { dlopen } from "bun:ffi";
import type { CudaEvent } from "../../worker/native/cuda/event.ts";
import type { DeviceBuffer } from "../../worker/native/cuda/memory.ts";
import type { CudaStream } from "../../worker/native/cuda/stream.ts";

// The arguments of cuda.h: addresses and sizes as u64, handles and what is written to as ptr.
const { symbols } = dlopen("libcuda.so.1", {
  cuEventSynchronize: { args: ["ptr"], returns: "i32" },
  cuEventElapsedTime: { args: ["ptr", "ptr", "ptr"], returns: "i32" },
  cuMemcpyDtoDAsync_v2: { args: ["u64", "u64", "u64", "ptr"], returns: "i32" },
});

function check(call: string, status: number): void {
  if (status !== 0) throw new Error(`${call}: status ${status}`);
}

/** Time from `start` to `end`, both made for timing; blocks this thread until both are done. Resolution about 0.5 µs. */
export function millisecondsBetween(start: CudaEvent, end: CudaEvent): number {
  check("cuEventSynchronize", symbols.cuEventSynchronize(end.handle));
  const out = new Float32Array(1);
  check("cuEventElapsedTime", symbols.cuEventElapsedTime(out, start.handle, end.handle));
  return out[0] ?? 0;
}

/** Puts a copy of all of `source` to the start of `target` into the stream; the two must not overlap. */
export function copyOnDevice(stream: CudaStream, target: DeviceBuffer, source: DeviceBuffer): void {
  if (source.byteLength > target.byteLength) throw new RangeError(`"${source.name}" does not fit "${target.name}"`);
  const { pointer, byteLength } = source;
  check("cuMemcpyDtoDAsync_v2", symbols.cuMemcpyDtoDAsync_v2(target.pointer, pointer, byteLength, stream.handle));
}
