/** A mark in a stream that tells whether the work before it is done. */
import type { Pointer } from "bun:ffi";
import { openHandle } from "../library.ts";
import type { CudaContext } from "./context.ts";

/** Flags of cuda.h; recording an event without timing is cheaper. */
const disableTiming = 2;

export interface EventOptions {
  /** true: the time between two events can be measured; default false. */
  readonly timing?: boolean;
}

export interface CompletionOptions {
  /** Milliseconds of polling without yielding the thread; default 0.02. */
  readonly spinMs?: number;
}

export class CudaEvent {
  readonly handle: Pointer;
  readonly #context: CudaContext;

  constructor(context: CudaContext, options: EventOptions = {}) {
    const flags = options.timing ? 0 : disableTiming;
    this.#context = context;
    this.handle = openHandle((out) => context.driver.call("cuEventCreate", out, flags));
  }

  /** Is everything before the mark done? True before the first record. @throws CudaError after a device fault */
  isDone(): boolean {
    const { driver } = this.#context;
    return driver.isDone("cuEventQuery", driver.symbols.cuEventQuery(this.handle));
  }

  /**
   * Resolves when everything before the mark is done. It polls from the event loop, so that the process still handles
   * messages: CUDA would call back on a thread of its own, where JavaScript cannot run.
   */
  async completion({ spinMs = 0.02 }: CompletionOptions = {}): Promise<void> {
    const spinEnd = performance.now() + spinMs;
    while (performance.now() < spinEnd) if (this.isDone()) return;
    while (!this.isDone()) await new Promise<void>((resolve) => setImmediate(resolve));
  }

  close(): void {
    this.#context.driver.call("cuEventDestroy_v2", this.handle);
  }
}
