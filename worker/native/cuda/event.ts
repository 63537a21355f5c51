/** A mark in a stream: whether the work before it is done. */
import type { Pointer } from "bun:ffi";
import { openHandle } from "../library.ts";
import type { CudaContext } from "./context.ts";

/** Flags of cuda.h: without timing a record is cheaper. */
const disableTiming = 2;

export interface EventOptions {
  /** For measurements of the time between two events; default false. */
  readonly timing?: boolean;
}

export interface CompletionOptions {
  /** How long to ask without letting go of the thread; default 0.02. */
  readonly spinMs?: number;
}

export class CudaEvent {
  readonly handle: Pointer;
  readonly #context: CudaContext;

  constructor(context: CudaContext, options: EventOptions = {}) {
    const { driver } = context;
    const flags = options.timing ? 0 : disableTiming;
    this.#context = context;
    this.handle = openHandle((out) => driver.check("cuEventCreate", driver.symbols.cuEventCreate(out, flags)));
  }

  /** Is everything before the mark done? True before the first record. @throws CudaError after a device fault */
  isDone(): boolean {
    const { driver } = this.#context;
    return driver.isDone("cuEventQuery", driver.symbols.cuEventQuery(this.handle));
  }

  /**
   * Resolves when everything before the mark is done. It asks from the event loop, so that messages of the
   * process go on meanwhile: CUDA's own callbacks come on a thread that JavaScript does not have.
   */
  async completion({ spinMs = 0.02 }: CompletionOptions = {}): Promise<void> {
    const spinEnd = performance.now() + spinMs;
    while (performance.now() < spinEnd) if (this.isDone()) return;
    while (!this.isDone()) await new Promise<void>((resolve) => setImmediate(resolve));
  }

  close(): void {
    const { driver } = this.#context;
    driver.check("cuEventDestroy_v2", driver.symbols.cuEventDestroy_v2(this.handle));
  }
}
