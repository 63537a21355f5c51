import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../gateway/base/errors.ts";
import { holdLongWork } from "../../../gateway/base/pace.ts";
import { type BulkAnswer, type BulkJob, type BulkRunner, runBulk } from "../../../gateway/execute/bulk/bulk.ts";
import { findBulkLines } from "../../../gateway/execute/bulk/bulk-lines.ts";
import { BulkResults } from "../../../gateway/execute/bulk/bulk-results.ts";
import type { Query } from "../../../gateway/query/ir.ts";

const textOf = (query: Query): string => (query.kind === "message" ? query.text : "");
const usage = { promptTokens: 10, completionTokens: 2, cachedTokens: 4, cacheWriteTokens: 0 };
const answer = (text: string): BulkAnswer => ({ response: { text }, usage });

/** A text's letters are its fragments, of a token each; upper case fails. */
class LetterRunner implements BulkRunner {
  readonly ran: string[] = [];
  running = 0;
  mostRunning = 0;
  /** Called before a query is answered. */
  wait: (text: string, signal: AbortSignal) => Promise<void> = async () => undefined;

  readonly fragments: BulkRunner["fragments"] = async (query) => {
    if (textOf(query).includes("?")) throw new ApiError("not_found", { param: "$.fragment.id" });
    return [...textOf(query)].map((key) => ({ key, tokens: 1 }));
  };

  readonly run: BulkRunner["run"] = async (query, _requestId, signal) => {
    const text = textOf(query);
    this.ran.push(text);
    this.running += 1;
    this.mostRunning = Math.max(this.mostRunning, this.running);
    await this.wait(text, signal).finally(() => {
      this.running -= 1;
    });
    if (text !== text.toLowerCase()) throw new ApiError("overloaded");
    return answer(text);
  };
}

async function makeJob(texts: readonly string[], fields: Partial<BulkJob> = {}) {
  const runner = new LetterRunner();
  const lines = await findBulkLines(
    texts.map((text) => `${text === "bad" ? "{" : JSON.stringify({ query: { user: text } })}\n`),
    new AbortController().signal,
  );
  const results = new BulkResults({
    tenants: 1,
    bulksPerTenant: 1,
    bytesPerTenant: 1e6,
    keepMs: 1e6,
    nowMs: () => 0,
  });
  const record = results.open("tenant_a", lines.length);
  const out: { id: string; index: number; response?: { text: string }; error?: { code: string; param: string } }[] = [];
  const errors: string[] = [];
  const job: BulkJob = {
    requestId: "req",
    lines,
    order: "planned",
    concurrency: 1,
    capacityTokens: 2,
    runner,
    record,
    onLine: async (line) => void out.push(JSON.parse(line)),
    onError: ({ code }) => void errors.push(code),
    signal: new AbortController().signal,
    ...fields,
  };
  return { job, runner, out, errors, record, results };
}

describe("order", () => {
  const turns = ["ab", "cd", "ab", "cd"];

  test("planned: queries with the same fragments follow one another", async () => {
    const { job, runner, record, out } = await makeJob(turns);
    await runBulk(job);
    expect(runner.ran).toEqual(["ab", "ab", "cd", "cd"]);
    expect(record.state()).toMatchObject({ status: "completed", order: "planned", completed: 4, failed: 0 });
    expect(out.map(({ id, index }) => [id, index])).toEqual([
      ["1", 0],
      ["3", 2],
      ["2", 1],
      ["4", 3],
    ]);
  });

  test("ingestion: as given, and nothing is looked at", async () => {
    const looked = async (): Promise<never> => {
      throw new Error("looked at");
    };
    const { job, runner, record } = await makeJob(turns, { order: "ingestion" });
    await runBulk({ ...job, runner: { fragments: looked, run: runner.run } });
    expect(runner.ran).toEqual(turns);
    expect(record.state().order).toBe("ingestion");
  });

  test("a pool that holds everything: as given, and the record says so", async () => {
    const { job, runner, record } = await makeJob(turns, { capacityTokens: 4 });
    await runBulk(job);
    expect(runner.ran).toEqual(turns);
    expect(record.state().order).toBe("ingestion");
  });
});

test("at most so many run at the same time, and as many as that", async () => {
  const { job, runner } = await makeJob([..."abcdefgh"], { concurrency: 3 });
  // Each waits until as many run as may.
  const three = Promise.withResolvers<void>();
  runner.wait = () => {
    if (runner.mostRunning === 3) three.resolve();
    return three.promise;
  };
  await runBulk(job);
  expect(runner.mostRunning).toBe(3);
});

test("no line begins while the process has no memory for it", async () => {
  let isTight = true;
  holdLongWork(
    () => false,
    () => isTight,
  );
  try {
    const { job, runner } = await makeJob(["a", "b"], { order: "ingestion" });
    const done = runBulk(job);
    for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate);
    expect(runner.ran).toEqual([]);
    isTight = false;
    await done;
    expect(runner.ran).toEqual(["a", "b"]);
  } finally {
    holdLongWork(
      () => false,
      () => false,
    );
  }
});

test("results come as they finish", async () => {
  const gate = Promise.withResolvers<void>();
  const { job, runner, out } = await makeJob(["a", "b", "c"], { concurrency: 2, order: "ingestion" });
  runner.wait = (text) => (text === "a" ? gate.promise : Promise.resolve());
  const done = runBulk({
    ...job,
    onLine: async (line) => {
      await job.onLine(line);
      if (out.length === 2) gate.resolve();
    },
  });
  await done;
  expect(out.map(({ response }) => response?.text)).toEqual(["b", "c", "a"]);
});

test("a reader that is slow holds the next query up", async () => {
  const gate = Promise.withResolvers<void>();
  const { job, runner } = await makeJob(["a", "b"], { onLine: () => gate.promise, order: "ingestion" });
  const done = runBulk(job);
  for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate);
  expect(runner.ran).toEqual(["a"]);
  gate.resolve();
  await done;
  expect(runner.ran).toEqual(["a", "b"]);
});

test("each line's failure is its own result: parsing, looking, running", async () => {
  const { job, out, errors, record, results } = await makeJob(["bad", "a?", "A", "a"]);
  await runBulk(job);
  const byId = Object.fromEntries(out.map(({ id, error, response }) => [id, error?.code ?? response?.text]));
  expect(byId).toEqual({ 1: "invalid_json", 2: "not_found", 3: "overloaded", 4: "a" });
  expect(errors.toSorted()).toEqual(["invalid_json", "not_found", "overloaded"]);
  expect(record.state()).toMatchObject({ status: "completed", completed: 1, failed: 3, usage });
  expect(JSON.parse(results.line("tenant_a", record.id, "2") ?? "")).toMatchObject({
    id: "2",
    index: 1,
    error: { param: "$.fragment.id" },
  });
});

test("what is thrown inside never reaches the client in its own words", async () => {
  const { job, runner, out } = await makeJob(["a"]);
  runner.wait = () => Promise.reject(new Error("secret"));
  await runBulk(job);
  expect(out).toMatchObject([{ error: { code: "internal" } }]);
  expect(JSON.stringify(out)).not.toContain("secret");
});

describe("client gone", () => {
  test("what runs ends, nothing new starts, what finished stays", async () => {
    const client = new AbortController();
    const { job, runner, out, errors, record, results } = await makeJob(["a", "b", "c", "d"], {
      concurrency: 2,
      order: "ingestion",
      signal: client.signal,
    });
    runner.wait = (text, signal) =>
      text === "a"
        ? Promise.resolve()
        : new Promise((_, reject) => {
            signal.addEventListener("abort", () => reject(new ApiError("internal")));
            if (text === "c") client.abort();
          });
    await runBulk(job);
    expect(runner.ran).toEqual(["a", "b", "c"]);
    expect(runner.running).toBe(0);
    expect(out.map(({ id }) => id)).toEqual(["1"]);
    expect(errors).toEqual([]);
    expect(record.state()).toMatchObject({ status: "cancelled", completed: 1, failed: 0 });
    expect(results.line("tenant_a", record.id, "1")).toBeDefined();
  });

  test("while queries are looked at: none is run", async () => {
    const client = new AbortController();
    const { job, runner, record } = await makeJob(["a", "b"], { signal: client.signal });
    let looks = 0;
    const fragments: BulkRunner["fragments"] = async () => {
      looks += 1;
      client.abort();
      return [];
    };
    await runBulk({ ...job, runner: { ...runner, fragments, run: runner.run } });
    expect({ looks, ran: runner.ran, status: record.state().status }).toEqual({
      looks: 1,
      ran: [],
      status: "cancelled",
    });
  });
});
