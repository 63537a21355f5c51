/** A queue of work on the device, run in order. */
import type { Pointer } from "bun:ffi";
import { openHandle } from "../library.ts";
import type { CudaContext } from "./context.ts";
import type { CudaEvent } from "./event.ts";

/** Flag of cuda.h: the stream does not wait for the legacy default stream. */
const nonBlocking = 1;
/** Lower goes first; the driver takes its own limit for what is below that. */
const highestPriority = -100;

export class CudaStream {
  readonly context: CudaContext;
  readonly handle: Pointer;

  /** @param isUrgent its kernels get free multiprocessors before those of other streams */
  constructor(context: CudaContext, isUrgent = false) {
    const priority = isUrgent ? highestPriority : 0;
    this.context = context;
    this.handle = openHandle((out) => context.driver.call("cuStreamCreateWithPriority", out, nonBlocking, priority));
  }

  /** Puts the event's mark behind everything that is in the stream now. */
  record(event: CudaEvent): void {
    const { driver } = this.context;
    driver.check("cuEventRecord", driver.symbols.cuEventRecord(event.handle, this.handle));
  }

  /** What is put into this stream from now on waits for what was before the event's mark, in any stream. */
  waitFor(event: CudaEvent): void {
    const { driver } = this.context;
    driver.check("cuStreamWaitEvent", driver.symbols.cuStreamWaitEvent(this.handle, event.handle, 0));
  }

  /** Blocks this thread until the stream is empty. */
  synchronize(): void {
    this.context.driver.call("cuStreamSynchronize", this.handle);
  }

  close(): void {
    this.context.driver.call("cuStreamDestroy_v2", this.handle);
  }
}
