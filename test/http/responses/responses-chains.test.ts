/** Conversations of many turns: each turn is kept once, read once, and within bounds. */
import { expect, test } from "bun:test";
import { storedResponseBytes } from "../../../db/responses.ts";
import { limits } from "../../../gateway/config.ts";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";

const path = "/v1/responses";
const question = { model: "fake-model", max_output_tokens: 4, input: "the thing" };
const headers = { authorization: "Bearer key-a" };

interface Answer {
  readonly id: string;
  readonly error?: { readonly code: string; readonly param: string | null };
  readonly output: readonly { readonly id: string }[];
}

async function send(app: ChatRig["app"], body: object): Promise<Answer & { readonly status: number }> {
  const response = await post(app, { ...question, ...body }, { path });
  return { ...((await response.json()) as Answer), status: response.status };
}

const search = (letters: number, id = "fs_1") => ({
  type: "file_search_call",
  id,
  status: "completed",
  queries: Array.from({ length: 16 }, () => "q".repeat(letters / 16)),
});

/** Counts what is read of stored rows. */
function countedReads({ stored }: ChatRig): { count: number } {
  const reads = { count: 0 };
  const read = stored.read.bind(stored);
  stored.read = (...args) => {
    reads.count++;
    return read(...args);
  };
  return reads;
}

test("each turn of a chain is kept once, and all are in the prompt and in the list", async () => {
  const rig = chatRig({ retention: { rows: 20 } });
  const turnBytes = 200_000;
  let previous: string | undefined;
  for (let turn = 0; turn < 8; turn++) {
    const input = [search(turnBytes, `fs_${turn}`), { role: "user", content: `turn ${turn}` }];
    const { id, status } = await send(rig.app, { input, previous_response_id: previous });
    expect(status).toBe(200);
    previous = id;
  }
  const bytes = storedResponseBytes(rig.db, "tenant_a");
  expect(bytes).toBeGreaterThan(8 * turnBytes);
  expect(bytes).toBeLessThan(8 * turnBytes * 1.1);
  const listed = await rig.app.request(`${path}/${previous}/input_items?order=asc&limit=100`, { headers });
  const { data } = (await listed.json()) as { data: { id: string; type: string; content?: { text: string }[] }[] };
  expect(new Set(data.map(({ id }) => id)).size).toBe(8 * 3 - 1);
  expect(data.filter(({ type }) => type === "file_search_call").length).toBe(8);
  const texts = data.flatMap(({ content }) => content?.map(({ text }) => text) ?? []);
  expect(texts.filter((text) => text.startsWith("turn")).length).toBeGreaterThanOrEqual(8);
});

/** Items of searches, which are in no prompt; `letters` of the question are in each. */
async function searched(rig: ChatRig, letters: number) {
  const tools = [{ type: "file_search", vector_store_ids: ["vs_1"] }];
  const { output } = await send(rig.app, { input: `amber ${"é".repeat(letters)}`, tools });
  const id = output[0]?.id;
  expect(id).toStartWith("fs_");
  return (count: number) => Array.from({ length: count }, () => ({ type: "item_reference", id }));
}
const text = { role: "user", content: "x" };

test("a row is read once for a request, however often it is referred to", async () => {
  const rig = chatRig();
  const refer = await searched(rig, 1);
  const reads = countedReads(rig);
  const { id, status } = await send(rig.app, { input: [...refer(200), text] });
  expect([status, reads.count]).toEqual([200, 1]);
  // It is kept by reference.
  const row = rig.db.client.query<{ bytes: number }, [string]>(
    "select length(input_items) as bytes from responses where id = ?",
  );
  expect(row.get(id)?.bytes).toBeLessThan(200 * 100);
  const listed = await rig.app.request(`${path}/${id}/input_items?limit=100`, { headers });
  expect(((await listed.json()) as { data: unknown[] }).data.length).toBe(100);
});

test("items that are referred to count each time: a conversation has a bound in bytes and in items", async () => {
  const rig = chatRig();
  const { app } = rig;
  const refer = await searched(rig, 100);
  const first = await send(app, { input: [...refer(400), text] });
  const second = await send(app, { input: [...refer(400), text], previous_response_id: first.id });
  expect([first.status, second.status]).toEqual([200, 200]);
  const third = await send(app, { input: [...refer(400), text], previous_response_id: second.id });
  expect(third).toMatchObject({ status: 400, error: { code: "invalid_value" } });
  const large = Array.from({ length: 7 }, (_, at) => search(256 * 1024, `fs_${at}`));
  let previous = first.id;
  const statuses: number[] = [];
  for (let turn = 0; turn < 7; turn++) {
    const { id, status } = await send(app, { input: [...large, text], previous_response_id: previous });
    statuses.push(status);
    previous = id ?? previous;
  }
  // Seven pieces of 256 KiB a turn: five turns have more than 8 MiB, and what is refused changes nothing.
  expect(statuses).toEqual([200, 200, 200, 200, 200, 400, 400]);
});

test("a chain whose earlier response was deleted ends there; what follows it can still be read", async () => {
  const { app, stored } = chatRig();
  const first = await send(app, {});
  const second = await send(app, { previous_response_id: first.id });
  const read = async (rest: string) => (await app.request(`${path}/${second.id}${rest}`, { headers })).status;
  expect([await read(""), await read("/input_items")]).toEqual([200, 200]);
  expect((await app.request(`${path}/${first.id}`, { method: "DELETE", headers })).status).toBe(200);
  for (let i = 0; i < 2; i++) {
    expect([await read(""), await read("/input_items")]).toEqual([200, 404]);
    const next = await send(app, { previous_response_id: second.id });
    expect(next).toMatchObject({ status: 404, error: { code: "not_found", param: "previous_response_id" } });
    // Again when the row is gone.
    await stored.idle();
  }
});

test("a conversation goes on over more turns than are kept", async () => {
  const { app, stored } = chatRig({ retention: { rows: 2 } });
  let previous = (await send(app, { input: "the first" })).id;
  const firstId = previous;
  for (let turn = 0; turn < 6; turn++) {
    const { id, status } = await send(app, { previous_response_id: previous });
    expect(status).toBe(200);
    previous = id;
    await stored.idle();
  }
  expect((await app.request(`${path}/${firstId}`, { headers })).status).toBe(404);
  const listed = await app.request(`${path}/${previous}/input_items?order=asc&limit=1`, { headers });
  expect(await listed.json()).toMatchObject({ data: [{ content: [{ text: "the first" }] }] });
  // It is its text, so it can be deleted all the same.
  expect((await app.request(`${path}/${firstId}`, { method: "DELETE", headers })).status).toBe(200);
  expect((await send(app, { previous_response_id: previous })).status).toBe(404);
});

test("what is too much to be kept is refused before anything is computed", async () => {
  const { app, submits } = chatRig();
  const queries = search(limits.storedResponses.requestBytes / 8);
  const input = [...Array.from({ length: 9 }, () => queries), { role: "user", content: "x" }];
  expect(await send(app, { input })).toMatchObject({ status: 400, error: { code: "invalid_value", param: "input" } });
  expect(submits()).toEqual([]);
  expect((await send(app, { input, store: false })).status).toBe(200);
  for (const [queries, param] of [
    [["q".repeat(20_000)], "input[0].queries[0]"],
    [Array.from({ length: 17 }, () => "q"), "input[0].queries"],
  ] as const) {
    const item = { type: "file_search_call", id: "fs_1", status: "completed", queries };
    const refused = await send(app, { input: [item, { role: "user", content: "x" }] });
    expect(refused).toMatchObject({ status: 400, error: { param } });
  }
});
