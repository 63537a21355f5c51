/** `openai`: batches from the upload of their lines to the files of their results, and over a restart of the server. */
import { beforeAll, describe, expect, test } from "bun:test";
import OpenAI, { toFile } from "openai";
import { answer, countingFetch, documents, question, type Suite, thrownBy } from "./suite.ts";

type Endpoint = OpenAI.BatchCreateParams["endpoint"];

interface ResultLine {
  readonly custom_id: string;
  readonly response: { readonly status_code: number; readonly request_id: string; readonly body: unknown } | null;
  readonly error: unknown;
}

export function openaiBatches(suite: Suite): void {
  describe("openai: batches", () => {
    let client: OpenAI;
    let apiKey: string;
    const linesOf = (endpoint: Endpoint, bodies: readonly object[]): string =>
      bodies.map((body, i) => JSON.stringify({ custom_id: `${i}`, method: "POST", url: endpoint, body })).join("\n");
    const create = async (endpoint: Endpoint, text: string): Promise<OpenAI.Batch> => {
      const file = await client.files.create({
        file: await toFile(Buffer.from(text), "lines.jsonl"),
        purpose: "batch",
      });
      return await client.batches.create({ input_file_id: file.id, endpoint, completion_window: "24h" });
    };
    const ended = async ({ id }: OpenAI.Batch): Promise<OpenAI.Batch> => {
      for (;;) {
        const batch = await client.batches.retrieve(id);
        if (["completed", "failed", "expired", "cancelled"].includes(batch.status)) return batch;
        await Bun.sleep(20);
      }
    };
    const resultsIn = async (fileId: string | undefined): Promise<readonly ResultLine[]> => {
      const text = await (await client.files.content(fileId ?? "")).text();
      return text
        .trimEnd()
        .split("\n")
        .map((line) => JSON.parse(line) as ResultLine);
    };
    const chat = (fields: object = {}) => {
      const messages = [{ role: "user", content: question }];
      return { model: suite.model, messages, documents, temperature: 0, max_tokens: 40, ...fields };
    };

    beforeAll(async () => {
      apiKey = (await suite.tenant("openai-batches")).apiKey;
      client = new OpenAI({ baseURL: `${suite.url}/v1`, apiKey, maxRetries: 0 });
    });

    test("every endpoint, results and errors in files", async () => {
      const input = { model: suite.model, input: question, max_output_tokens: 8 };
      const endpoints: Readonly<Record<string, readonly object[]>> = {
        "/v1/chat/completions": [chat(), chat({ temperature: 9 }), chat()],
        "/v1/completions": [{ model: suite.model, prompt: "The extension", max_tokens: 4 }],
        "/v1/embeddings": [{ model: suite.model, input: ["Mira", "Jon"] }],
        "/v1/responses": [input, { ...input, store: false }],
      };
      for (const [endpoint, bodies] of Object.entries(endpoints)) {
        const made = await create(endpoint as Endpoint, linesOf(endpoint as Endpoint, bodies));
        expect(made).toMatchObject({ object: "batch", endpoint, completion_window: "24h" });
        const batch = await ended(made);
        const failed = endpoint === "/v1/chat/completions" ? 1 : 0;
        const counts = { total: bodies.length, completed: bodies.length - failed, failed };
        expect(batch).toMatchObject({ status: "completed", request_counts: counts });
        expect(batch.usage?.input_tokens).toBeGreaterThan(0);
        const results = await resultsIn(batch.output_file_id);
        for (const { response, error } of results) expect([response?.status_code, error]).toEqual([200, null]);
        if (failed === 0) continue;
        expect(JSON.stringify(results[0]?.response?.body)).toContain(answer);
        expect(await resultsIn(batch.error_file_id)).toMatchObject([
          { custom_id: "1", response: { status_code: 400, body: { error: { param: "temperature" } } } },
        ]);
      }
    });

    test("a file that is wrong, lists in pages, and refusals", async () => {
      const wrong = await ended(await create("/v1/embeddings", linesOf("/v1/completions", [{}])));
      expect(wrong).toMatchObject({ status: "failed", errors: { data: [{ code: "mismatched_endpoint", line: 1 }] } });
      const ids: string[] = [];
      for await (const { id } of client.batches.list({ limit: 2 })) ids.push(id);
      expect(ids[0]).toBe(wrong.id);
      expect(new Set(ids).size).toBe(5);
      expect(await thrownBy(client.batches.retrieve("batch_nobody"))).toBeInstanceOf(OpenAI.NotFoundError);
      expect(await thrownBy(client.batches.cancel(wrong.id))).toBeInstanceOf(OpenAI.ConflictError);
      const file = await client.files.create({ file: await toFile(Buffer.from("x"), "x.txt"), purpose: "user_data" });
      const request = { input_file_id: file.id, endpoint: "/v1/embeddings", completion_window: "24h" } as const;
      expect(await thrownBy(client.batches.create(request))).toMatchObject({ status: 400, param: "input_file_id" });
      const window = client.batches.create({ ...request, completion_window: "1h" as never });
      expect(await thrownBy(window)).toMatchObject({ status: 400, param: "completion_window" });
    });

    test("is cancelled while it runs", async () => {
      const long = chat({ max_tokens: 2_000, ignore_eos: true });
      const made = await create("/v1/chat/completions", linesOf("/v1/chat/completions", Array(40).fill(long)));
      while ((await client.batches.retrieve(made.id)).status === "validating") await Bun.sleep(5);
      expect((await client.batches.cancel(made.id)).status).toBe("cancelling");
      expect((await ended(made)).status).toBe("cancelled");
      await suite.untilNothingRuns();
    });

    test("a restart of the server: a 503 is tried again until it is back, a batch goes on and has each line once", async () => {
      const endpoint = "/v1/chat/completions";
      // The server is asked to stop after five of them: the others take some 700 steps.
      const total = 24;
      const bodies = Array.from({ length: total }, (_, i) => chat({ max_tokens: 40, ignore_eos: true, seed: i }));
      const made = await create(endpoint, linesOf(endpoint, bodies));
      while (((await client.batches.retrieve(made.id)).request_counts?.completed ?? 0) < 5) await Bun.sleep(5);
      const release = await suite.occupy({ apiKey });
      const down = suite.stopServer();
      // The signal takes its time: a request that comes before it is answered like any other.
      while ((await fetch(`${suite.url}/ready`)).ok) await Bun.sleep(5);
      const counting = countingFetch();
      const patient = client.withOptions({ maxRetries: 20, fetch: counting.fetch });
      const waiting = patient.chat.completions.create(chat() as OpenAI.ChatCompletionCreateParamsNonStreaming);
      while (!counting.statuses.includes(503)) await Bun.sleep(5);
      const refused = await thrownBy(client.chat.completions.create(chat() as never));
      expect(refused).toBeInstanceOf(OpenAI.InternalServerError);
      expect(refused).toMatchObject({ status: 503, code: "server_shutdown" });
      release();
      await down;
      await suite.startAgain();
      expect((await waiting).choices[0]?.message.content).toContain(answer);
      const batch = await ended(made);
      expect(batch).toMatchObject({ status: "completed", request_counts: { total, completed: total, failed: 0 } });
      const ids = (await resultsIn(batch.output_file_id)).map(({ custom_id: id }) => id);
      expect(ids).toEqual(bodies.map((_, i) => `${i}`));
    });
  });
}
