/** Text that was deleted, or overwritten, is in no file of the data folder a few seconds later. */
import { expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { startTestServer } from "../support/server.ts";
import { until } from "../support/until.ts";

test("of responses, of tenants that have only those, of names", async () => {
  await using server = await startTestServer({ model: "one-layer" });
  const { url, adminKey, dataDir, model } = server;
  const call = async (method: string, path: string, apiKey: string, body?: object) => {
    const headers = { authorization: `Bearer ${apiKey}`, "content-type": "application/json" };
    const response = await fetch(`${url}${path}`, { method, headers, ...(body && { body: JSON.stringify(body) }) });
    expect(response.ok).toBe(true);
    return (await response.json()) as { id: string };
  };
  const traces = () =>
    readdirSync(dataDir, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map(({ parentPath, name }) => join(parentPath, name))
      .filter((path) => readFileSync(path).includes("canary"));
  const [first, second] = [await server.tenant("t"), await server.tenant("canary-tenant")];
  const ask = ({ apiKey }: { apiKey: string }) =>
    call("POST", "/v1/responses", apiKey, { model, input: "canary-question", max_output_tokens: 2 });
  const { id } = await ask(first);
  await ask(second);
  const store = await call("POST", "/v1/vector_stores", first.apiKey, { name: "canary-store" });
  const metadata = { about: "canary-metadata" };
  await call("POST", `/v1/vector_stores/${store.id}`, first.apiKey, { name: "canary-renamed", metadata });
  // A look that meets a checkpoint of the write-ahead log can find the text in neither file.
  await until(() => traces().length > 0, "the data folder has it");
  await call("DELETE", `/v1/responses/${id}`, first.apiKey);
  await call("DELETE", `/admin/v1/tenants/${second.id}`, adminKey);
  await call("POST", `/v1/vector_stores/${store.id}`, first.apiKey, { name: "s", metadata: {} });
  await until(() => traces().length === 0, "the data folder has nothing of it", 10_000);
}, 60_000);
