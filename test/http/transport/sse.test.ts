import { describe, expect, test } from "bun:test";
import { Hono } from "hono";
import { ApiError } from "../../../gateway/base/errors.ts";
import { limits } from "../../../gateway/config.ts";
import type { AppEnv } from "../../../gateway/http/transport/context.ts";
import { type SseOptions, type SseStream, sseResponse } from "../../../gateway/http/transport/sse.ts";

function stream(produce: (stream: SseStream) => Promise<void>, options?: SseOptions) {
  const app = new Hono<AppEnv>();
  app.get("/", (context) => sseResponse(context, produce, options));
  return app.request("/");
}

describe("server-sent events", () => {
  test("fields in order, many lines as many data lines", async () => {
    const response = await stream(async (it) => {
      await it.event({ id: "1", event: "note", data: "a\nb" });
      await it.event({ data: "{}" });
    });
    expect(await response.text()).toBe("id: 1\nevent: note\ndata: a\ndata: b\n\ndata: {}\n\n");
    expect(response.headers.get("cache-control")).toContain("no-cache");
  });

  test("what is thrown is the last event, from the table and never in its own words", async () => {
    const seen: string[] = [];
    const onError = (error: ApiError) => void seen.push(error.code);
    const broken = await stream(
      async (it) => {
        await it.event({ data: "1" });
        throw new Error("secret: tenant's text");
      },
      { onError },
    );
    const text = await broken.text();
    expect(text).toStartWith("data: 1\n\ndata: ");
    expect(text).toContain('"code":"internal"');
    expect(text).not.toContain("secret");
    const lost = await stream(() => Promise.reject(new ApiError("worker_lost")), { onError });
    expect(await lost.text()).toContain('"code":"worker_lost"');
    expect(seen).toEqual(["internal", "worker_lost"]);
  });

  test("asked for by HEAD it ends at once", async () => {
    const app = new Hono<AppEnv>();
    const ended = Promise.withResolvers<boolean>();
    app.get("/", (context) =>
      sseResponse(context, async (it) => {
        await new Promise((resolve) => it.signal.addEventListener("abort", resolve));
        ended.resolve(it.closed);
      }),
    );
    const response = await app.request("/", { method: "HEAD" });
    expect(response.headers.get("content-type")).toStartWith("text/event-stream");
    expect(await response.text()).toBe("");
    expect(await ended.promise).toBe(true);
  });

  test("silence is filled with comments", async () => {
    const response = await stream(() => Bun.sleep(25), { pingMs: 8 });
    expect(await response.text()).toMatch(/^(: ping\n\n)+$/);
  });

  test("what is all written when the answer is due leaves in one piece", async () => {
    const response = await stream(async (it) => {
      for (let event = 0; event < 20; event++) await it.event({ data: `${event} ä` });
    });
    const first = await response.body?.getReader().read();
    expect(new TextDecoder().decode(first?.value)).toMatch(/^data: 0 ä\n\n(data: \d+ ä\n\n){18}data: 19 ä\n\n$/);
  });

  test("events of later turns follow the first ones, which do not wait for them", async () => {
    const goOn = Promise.withResolvers<void>();
    const response = await stream(async (it) => {
      await it.event({ data: "1" });
      await it.event({ data: "2" });
      await goOn.promise;
      await it.event({ data: "3" });
    });
    const reader = response.body?.getReader();
    expect(new TextDecoder().decode((await reader?.read())?.value)).toBe("data: 1\n\ndata: 2\n\n");
    goOn.resolve();
    expect(new TextDecoder().decode((await reader?.read())?.value)).toBe("data: 3\n\n");
    expect((await reader?.read())?.done).toBe(true);
  });

  test("a slow reader holds the producer up, within the buffer's size", async () => {
    const event = { data: "x".repeat(1_024) };
    let written = 0;
    const response = await stream(async (it) => {
      for (; written < 1_000 && !it.closed; written++) await it.event(event);
    });
    await Bun.sleep(1);
    // The event that found the buffer full has not returned yet.
    const buffered = (written + 1) * 1_032;
    expect(buffered).toBeGreaterThanOrEqual(limits.streamBufferBytes);
    expect(buffered).toBeLessThan(limits.streamBufferBytes + 8 * 1_032);
    expect((await response.text()).length).toBe(1_000 * 1_032);
  });

  test("a reader that never reads is let go", async () => {
    const ended = Promise.withResolvers<SseStream>();
    await stream(
      async (it) => {
        while (!it.closed) await it.event({ data: "x".repeat(10_000) });
        ended.resolve(it);
      },
      { stallMs: 5 },
    );
    expect((await ended.promise).signal.aborted).toBe(true);
  });

  test("a reader that leaves aborts the signal; writing on does no harm", async () => {
    const ended = Promise.withResolvers<boolean>();
    const response = await stream(async (it) => {
      it.signal.addEventListener("abort", () => void it.event({ data: "late" }).then(() => ended.resolve(it.closed)));
      await it.event({ data: "1" });
      await new Promise((resolve) => it.signal.addEventListener("abort", resolve));
    });
    const reader = response.body?.getReader();
    await reader?.read();
    await reader?.cancel();
    expect(await ended.promise).toBe(true);
  });
});
