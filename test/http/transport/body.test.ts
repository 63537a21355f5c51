import { expect, test } from "bun:test";
import { limits } from "../../../gateway/config.ts";
import { readBody } from "../../../gateway/http/transport/body.ts";

const readMs = 60;
const chunkBytes = 200 * limits.bodyBytesPerMs;

/** A body of so many chunks, each so long after the one before; it stays open when it `hangs`. */
function slowRequest(chunkCount: number, gapMs: number, hangs: boolean): Request {
  let sent = 0;
  const body = new ReadableStream<Uint8Array>({
    async pull(controller) {
      if (sent === chunkCount) return hangs ? new Promise<void>(() => undefined) : controller.close();
      sent += 1;
      await Bun.sleep(gapMs);
      controller.enqueue(new Uint8Array(chunkBytes));
    },
  });
  return new Request("http://localhost/", { method: "POST", body });
}

const contextOf = (raw: Request) => ({ env: {}, req: { raw } });

test("a body that comes slowly and steadily is read to its end, however long it takes altogether", async () => {
  const bytes = await readBody(contextOf(slowRequest(8, 10, false)), 100 * chunkBytes, readMs);
  expect(bytes.byteLength).toBe(8 * chunkBytes);
});

test("a body that stops coming is given up", async () => {
  const reading = readBody(contextOf(slowRequest(0, 0, true)), 100 * chunkBytes, readMs);
  await expect(reading).rejects.toMatchObject({ code: "request_timeout" });
});
