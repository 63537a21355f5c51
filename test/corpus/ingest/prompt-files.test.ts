/** Files of prompts wait their turn: no tenant keeps another's from being read, and who leaves waits no more. */
import { expect, test } from "bun:test";
import { corpusLimits } from "../../../gateway/corpus/base/limits.ts";
import { type PromptFile, PromptFiles } from "../../../gateway/corpus/ingest/prompt-files.ts";

const noUploads = {
  find: () => undefined,
  content: () => Promise.reject(new Error("there are none")),
};
const never = new AbortController().signal;
const page = (text: string): PromptFile => {
  const base64 = Buffer.from(`<html><p>${text}</p></html>`).toString("base64");
  return { param: "file", source: { base64 }, filename: "a.html" };
};

test("a tenant's files wait for its own places and for no more than so many; another's is read meanwhile", async () => {
  const files = new PromptFiles(noUploads);
  const ended: string[] = [];
  const { promptReadersPerTenant, promptsWaitingPerTenant } = corpusLimits;
  const most = promptReadersPerTenant + promptsWaitingPerTenant;
  const many = Array.from({ length: most + 1 }, async (_, index) => {
    await files.read("tenant_a", [page(`page ${index}`)], never);
    ended.push("a");
  });
  const refused = many.pop();
  expect(await refused?.catch((error: unknown) => error)).toMatchObject({ code: "concurrency_limited" });
  const [other] = await files.read("tenant_b", [page("other")], never);
  expect(other).toEqual({ text: "other", pages: [], filename: "a.html" });
  // Those that were ahead of it, and those that became ready in the same moment.
  expect(ended.length).toBeLessThan(most / 2);
  await Promise.all(many);
  expect(ended).toHaveLength(most);
});

test("a text is remembered for its tenant alone, and what waits no more gives its turn away", async () => {
  const files = new PromptFiles(noUploads);
  const whole = async (tenantId: "tenant_a" | "tenant_b", text: string, signal = never): Promise<number> => {
    const beganMs = performance.now();
    await files.read(tenantId, [page(text)], signal);
    return performance.now() - beganMs;
  };
  const first = await whole("tenant_a", "again");
  expect(await whole("tenant_a", "again")).toBeLessThan(first / 4);
  expect(await whole("tenant_b", "again")).toBeGreaterThan(first / 4);
  const client = new AbortController();
  const running = [1, 2].map((at) => whole("tenant_a", `running ${at}`));
  const left = whole("tenant_a", "left", client.signal).catch((error: unknown) => error);
  const next = whole("tenant_a", "next");
  client.abort(new Error("the client has left"));
  expect(String(await left)).toContain("the client has left");
  await Promise.all([...running, next]);
});

test("one that takes too long, and more text than a request may have, are refused with the field's name", async () => {
  const slow = new PromptFiles(noUploads, 1).read("tenant_a", [page("a")], never);
  const message = expect.stringContaining("A vector store reads larger ones.");
  expect(await slow.catch((error: unknown) => error)).toMatchObject({ code: "invalid_value", param: "file", message });
  const text = {
    param: "many",
    source: { base64: Buffer.alloc(3_000_000, "a ").toString("base64") },
    filename: "a.txt",
  };
  const many = new PromptFiles(noUploads).read("tenant_a", [text, text, text], never);
  expect(await many.catch((error: unknown) => error)).toMatchObject({ param: "many", code: "invalid_value" });
});
