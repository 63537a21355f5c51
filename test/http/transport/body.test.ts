import { expect, test } from "bun:test";
import { holdLongWork } from "../../../gateway/base/pace.ts";
import { limits } from "../../../gateway/config.ts";
import { bodyMemory } from "../../../gateway/http/middleware/every-request.ts";
import { readBody, useText } from "../../../gateway/http/transport/body.ts";
import { RequestBudget } from "../../../gateway/http/transport/request-budget.ts";
import { yieldsDuring } from "../../support/yields.ts";

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

test("a short body is read whole, given up when it does not come, and refused when it is longer than it says", async () => {
  const memory = bodyMemory();
  const announced = (body: ReadableStream<Uint8Array> | string) => {
    const raw = new Request("http://localhost/", { method: "POST", body, headers: { "content-length": "5" } });
    const budget = new RequestBudget(memory, "tenant");
    return { ...contextOf(raw), budget, get: () => budget };
  };
  const whole = announced("short");
  expect(new TextDecoder().decode(await readBody(whole, 10, readMs))).toBe("short");
  expect(memory.heldBytes).toBe(5);
  whole.budget.releaseBody();
  const silent = announced(new ReadableStream({ pull: () => new Promise<void>(() => undefined) }));
  await expect(readBody(silent, 10, readMs)).rejects.toMatchObject({ code: "request_timeout" });
  await expect(readBody(announced("much longer"), 10, readMs)).rejects.toMatchObject({ code: "body_too_large" });
  const broken = announced(new ReadableStream({ start: (controller) => controller.error(new Error("gone")) }));
  await expect(readBody(broken, 10, readMs)).rejects.toMatchObject({ code: "invalid_request" });
  expect(memory.heldBytes).toBe(0);
});

/** A body that has arrived whole before it is read, as it has when others held the event loop meanwhile. */
const arrived = (text: string) => contextOf(new Request("http://localhost/", { method: "POST", body: text }));

test("a long body is decoded a part at a time, and others have their turn after each", async () => {
  const text = "\u{1f600}".repeat(2 ** 20);
  const lengths: number[] = [];
  const { result, yields } = await yieldsDuring(() =>
    useText(
      arrived(text),
      limits.bodyBytes,
      (whole) => whole === text,
      (piece) => void lengths.push(piece.length),
    ),
  );
  expect(result).toBe(true);
  expect(Math.max(...lengths)).toBeLessThanOrEqual(128 * 1024);
  expect(yields).toBeGreaterThanOrEqual(16);
});

test("a short body waits for no others", async () => {
  const others = Promise.withResolvers<void>();
  holdLongWork(
    () => true,
    () => false,
  );
  try {
    const reading = useText(arrived("x".repeat(200_000)), limits.bodyBytes, (text) => text.length);
    setTimeout(others.resolve, 1_000);
    expect(await Promise.race([reading, others.promise])).toBe(200_000);
  } finally {
    holdLongWork(
      () => false,
      () => false,
    );
  }
});
