import { describe, expect, test } from "bun:test";
import { chatRig, post, question } from "../chat-rig.ts";

describe("who may ask", () => {
  test.each([
    ["no key", undefined, 401, "missing_api_key"],
    ["an unknown key", "Bearer nobody", 401, "invalid_api_key"],
    ["a malformed header", "Basic abc", 401, "invalid_api_key"],
    ["a key without the scope", "Bearer key-reader", 403, "insufficient_scope"],
    ["a key of no tenant", "Bearer key-platform", 403, "no_tenant"],
  ])("%s", async (_name, authorization, status, code) => {
    const headers = { "content-type": "application/json", ...(authorization === undefined ? {} : { authorization }) };
    const init = { method: "POST", headers, body: JSON.stringify(question) };
    const response = await chatRig().app.request("/v1/chat/completions", init);
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({ error: { code } });
    expect(response.headers.get("x-request-id")).toStartWith("req_");
  });

  test("x-api-key is as good", async () => {
    const headers = { "content-type": "application/json", "x-api-key": "key-a" };
    const init = { method: "POST", headers, body: JSON.stringify(question) };
    expect((await chatRig().app.request("/v1/chat/completions", init)).status).toBe(200);
  });

  test("a tenant at its limit is told to wait; another is not", async () => {
    const { app, processes } = chatRig({ ticking: false, requestsPerTenant: 1 });
    const first = post(app, question);
    while ((processes[0]?.core.runningCount ?? 0) === 0) await Bun.sleep(0);
    const second = await post(app, question);
    expect([second.status, second.headers.get("retry-after")]).toEqual([429, "1"]);
    const other = post(app, question, { key: "key-b" });
    const running = (): number => processes[0]?.core.runningCount ?? 0;
    while (running() !== 2) await Bun.sleep(0);
    while (running() > 0) processes[0]?.core.tick();
    expect([(await first).status, (await other).status]).toEqual([200, 200]);
    const third = post(app, question);
    while (running() === 0) await Bun.sleep(0);
    while (running() > 0) processes[0]?.core.tick();
    expect((await third).status).toBe(200);
  });
});
