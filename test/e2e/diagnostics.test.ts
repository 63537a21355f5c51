/** What was not found is explained as it came to be, through the packages' own clients where they know the words. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

// A server starts in each of these tests.
setDefaultTimeout(60_000);

const user = (content: string) => ({ role: "user", content });

describe("what was not found is explained", () => {
  let server: TestServer;
  let tenant: TestTenant;
  beforeAll(async () => {
    server = await startTestServer({ model: "one-layer" });
    tenant = await server.tenant("asks");
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  type Reasons = { spangate: { prompt_cache_diagnostics: readonly { id: string | null; reason: string | null }[] } };
  const chat = async () => {
    const { spangate } = await tenant.client.json<Reasons>("POST", "/v1/chat/completions", {
      model: server.model,
      messages: [user("Where does Jon Vale live?")],
      documents: [{ id: "d", text: "Jon Vale lives in Fairhaven, near the old harbor." }],
      max_tokens: 2,
      spangate: { prompt_cache_diagnostics: true },
    });
    return Object.fromEntries(spangate.prompt_cache_diagnostics.map(({ id, reason }) => [id ?? "prompt", reason]));
  };

  test("by span: never computed, found, purged, under a salt that was rotated", async () => {
    const admin = (method: "POST" | "DELETE", path: string) =>
      server.admin.json(method, `/admin/v1/tenants/${tenant.id}/${path}`, method === "POST" ? {} : undefined);
    expect((await chat()).d).toBe("never_computed");
    expect(await chat()).toEqual({ d: null, prompt: "below_block" });
    await admin("DELETE", "cache");
    expect((await chat()).d).toBe("removed");
    expect((await chat()).d).toBeNull();
    await admin("POST", "salt/rotate");
    expect((await chat()).d).toBe("salt_changed");
    expect((await chat()).d).toBeNull();
  });

  test("against an earlier message and an earlier response", async () => {
    const system = "You are a clerk of the records office, and you answer every question with a single short sentence.";
    const messages = [user("What is the extension of Mira Holt, who works as a baker in the old town by the harbor?")];
    const say = (fields: object) =>
      tenant.client.json<{ id: string; diagnostics: unknown }>("POST", "/v1/messages", {
        ...{ model: server.model, max_tokens: 2, system, messages },
        ...fields,
      });
    const first = await say({ diagnostics: { previous_message_id: null } });
    const diagnostics = { previous_message_id: first.id };
    expect((await say({ diagnostics })).diagnostics).toBeNull();
    const goesOn = [...messages, { role: "assistant", content: "4821." }, user("And of Jon Vale?")];
    expect((await say({ diagnostics, messages: goesOn })).diagnostics).toBeNull();
    const changed = await say({ diagnostics, system: `Today is Monday. ${system}` });
    expect(changed.diagnostics).toMatchObject({ cache_miss_reason: { type: "system_changed" } });

    const client = openaiClient(server.url, tenant.apiKey);
    const respond = (input: string, comparedWith: string | null) =>
      client.responses.create({
        ...{ model: server.model, input, max_output_tokens: 2 },
        prompt_cache_options: { comparison_response_id: comparedWith },
      });
    const long =
      "Which of the two people who are named in the records office lives in Fairhaven, since when, in which of its streets, and who moved there first?";
    const earlier = await respond(long, null);
    expect((await respond(long, earlier.id)).prompt_cache_diagnostics).toEqual({ type: "cache_hit" });
    expect((await respond(`Now: ${long}`, earlier.id)).prompt_cache_diagnostics).toMatchObject({
      type: "cache_miss",
      reason: "input_changed",
    });
  });
});
