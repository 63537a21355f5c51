/** A sequence of launches and copies recorded once and replayed by one call. */
import type { Pointer } from "bun:ffi";
import { openHandle } from "../library.ts";
import type { CudaContext } from "./context.ts";
import type { CudaStream } from "./stream.ts";

/** CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: calls that would break the recording fail instead. */
const threadLocalMode = 1;

/**
 * Records what `record` puts into the stream, instead of running it. The graph keeps the launches' arguments and the
 * addresses of copies as they are now: the memory that they point to must outlive the graph.
 * @throws what `record` throws, and CudaError when `record` did what cannot be recorded (synchronize, allocate, copy
 * memory that is not pinned); the stream is usable afterwards
 */
export function captureGraph(stream: CudaStream, record: () => void): CudaGraph {
  const { driver } = stream.context;
  const { symbols } = driver;
  const beginStatus = symbols.cuStreamBeginCapture_v2(stream.handle, threadLocalMode);
  driver.check("cuStreamBeginCapture_v2", beginStatus);
  let isRecorded = false;
  const out = new BigUint64Array(1);
  let endStatus = 0;
  try {
    record();
    isRecorded = true;
  } finally {
    // The capture is ended after an error too: a stream in capture takes no other work.
    endStatus = symbols.cuStreamEndCapture(stream.handle, out);
    if (!isRecorded && out[0]) symbols.cuGraphDestroy(Number(out[0]) as Pointer);
  }
  driver.check("cuStreamEndCapture", endStatus);
  const template = Number(out[0]) as Pointer;
  try {
    return new CudaGraph(stream.context, template);
  } finally {
    symbols.cuGraphDestroy(template);
  }
}

export class CudaGraph {
  readonly #context: CudaContext;
  readonly #handle: Pointer;

  /** @param template the recorded graph; it may be destroyed afterwards */
  constructor(context: CudaContext, template: Pointer) {
    this.#context = context;
    this.#handle = openHandle((out) => context.driver.call("cuGraphInstantiateWithFlags", out, template, 0));
  }

  /** Uploads the graph to the device ahead of its first launch. */
  upload(stream: CudaStream): void {
    this.#context.driver.call("cuGraphUpload", this.#handle, stream.handle);
  }

  launch(stream: CudaStream): void {
    const { driver } = this.#context;
    driver.check("cuGraphLaunch", driver.symbols.cuGraphLaunch(this.#handle, stream.handle));
  }

  /** Destroys the graph; the device must have finished its launches. */
  close(): void {
    this.#context.driver.call("cuGraphExecDestroy", this.#handle);
  }
}
