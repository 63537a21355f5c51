/** Clients that vanish in the middle of an upload, a download or a stream: what they held is free for the next. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { connect } from "node:net";
import { limits } from "../../gateway/config.ts";
import { type FuzzWorld, model, openWorld } from "../fuzz/world.ts";

setDefaultTimeout(60_000);

let world: FuzzWorld;
beforeAll(async () => {
  world = await openWorld();
});
afterAll(async () => await world[Symbol.asyncDispose]());

/** Sends the bytes and is gone so long after. */
async function vanish(bytes: string, afterMs: number): Promise<void> {
  const { hostname, port } = new URL(world.url);
  const socket = connect({ host: hostname, port: Number(port) });
  socket.on("error", () => undefined);
  await new Promise<void>((resolve) => socket.on("connect", resolve));
  socket.write(bytes);
  await Bun.sleep(afterMs);
  socket.destroy();
}

const times = (count: number, work: () => Promise<void>) => Promise.all(Array.from({ length: count }, work));
const head = (line: string, ...headers: readonly string[]): string =>
  [`${line} HTTP/1.1`, "host: a", `authorization: Bearer ${world.caller.apiKey}`, ...headers, "", ""].join("\r\n");

async function upload(text: string): Promise<{ readonly status: number; readonly id: string }> {
  const form = new FormData();
  form.set("file", new File([text], `${crypto.randomUUID()}.txt`));
  form.set("purpose", "assistants");
  const response = await world.call(world.caller.apiKey, "POST", "/v1/files", form);
  return { status: response.status, id: ((await response.json()) as { id: string }).id };
}

/** Asks again while the server has not seen yet that somebody is gone. */
async function untilFree(ask: () => Promise<number>): Promise<number> {
  for (;;) {
    const status = await ask();
    if (status !== 429) return status;
    await Bun.sleep(10);
  }
}

test("uploads, with a length and in chunks", async () => {
  const form = "content-type: multipart/form-data; boundary=x";
  const whole = `${head("POST /v1/files", form, "content-length: 100000")}--x\r\n`;
  const chunked = `${head("POST /v1/files", form, "transfer-encoding: chunked")}5\r\n--x\r\n\r\n`;
  for (const bytes of [whole, chunked]) {
    await times(limits.uploadsPerTenant, () => vanish(bytes, 20));
    expect(await untilFree(async () => (await upload("Words.")).status)).toBe(200);
  }
});

test("downloads", async () => {
  // More than the kernel takes for a client that does not read.
  const { id } = await upload("Some words. ".repeat(2_000_000));
  const path = `/v1/files/${id}/content`;
  await times(limits.downloadsPerTenant, () => vanish(head(`GET ${path}`), 50));
  const ask = async (): Promise<number> => {
    const response = await world.call(world.caller.apiKey, "GET", path);
    await response.arrayBuffer();
    return response.status;
  };
  expect(await untilFree(ask)).toBe(200);
});

test("streams, at any point, and answers that are still to come", async () => {
  for (const stream of [true, false]) {
    const body = JSON.stringify({ model, max_tokens: 2_000, stream, messages: [{ role: "user", content: "Hi" }] });
    const bytes = `${head("POST /v1/chat/completions", "content-type: application/json", `content-length: ${body.length}`)}${body}`;
    for (const afterMs of [0, 1, 5, 20]) await times(32, () => vanish(bytes, afterMs));
  }
  const running = async (): Promise<number> => {
    const response = await world.call(world.adminKey, "GET", "/admin/v1/workers");
    const { data } = (await response.json()) as { data: readonly { in_flight_requests: number }[] };
    return data[0]?.in_flight_requests ?? -1;
  };
  while ((await running()) !== 0) await Bun.sleep(10);
  expect(world.faults).toEqual([]);
});
