/** Bytes from the disk as an answer, no more of them in memory than the client is about to read. */
import type { Context } from "hono";
import { limits } from "../../config.ts";
import type { AppEnv } from "./context.ts";

/**
 * Ends when the pieces do. A client that takes none for `stallMs`, or whose key is revoked, is let go, and the answer
 * stays incomplete.
 */
export async function byteStreamResponse(
  context: Context<AppEnv>,
  pieces: AsyncGenerator<Uint8Array>,
  stallMs: number = limits.streamStallMs,
): Promise<Response> {
  if (context.req.method === "HEAD") {
    await pieces.return(undefined); // its place is free before the answer is there
    return context.body(null);
  }
  const letIdle = context.env?.holdStream?.();
  let stalled: ReturnType<typeof setTimeout> | undefined;
  let body: ReadableStreamDefaultController<Uint8Array> | undefined;
  const unwatch = context.get("watchCaller")?.((error) => {
    body?.error(error);
    void end();
  });
  const end = async (): Promise<void> => {
    clearTimeout(stalled);
    unwatch?.();
    letIdle?.();
    await pieces.return(undefined);
  };
  const start = (controller: ReadableStreamDefaultController<Uint8Array>): void => {
    body = controller;
  };
  const pull = async (controller: ReadableStreamDefaultController<Uint8Array>): Promise<void> => {
    clearTimeout(stalled);
    const { done, value } = await pieces.next();
    if (done === true) {
      await end();
      controller.close();
      return;
    }
    controller.enqueue(value);
    stalled = setTimeout(() => {
      controller.error(new Error("the client does not read"));
      void end();
    }, stallMs);
  };
  const size = (piece: Uint8Array | undefined): number => piece?.byteLength ?? 0;
  return context.body(
    new ReadableStream({ start, pull, cancel: end }, { highWaterMark: limits.streamBufferBytes, size }),
  );
}
