/** `@anthropic-ai/sdk`: batches of messages from their making to their results, pages of them, and over a restart. */
import { beforeAll, describe, expect, test } from "bun:test";
import Anthropic from "@anthropic-ai/sdk";
import { answer, longSchema, question, type Suite, texts, thrownBy } from "./suite.ts";

type Request = Anthropic.Messages.BatchCreateParams.Request;

export function anthropicBatches(suite: Suite): void {
  describe("@anthropic-ai/sdk: batches", () => {
    let client: Anthropic;
    const request = (custom_id: string, fields: object = {}): Request => {
      const documents = Object.values(texts).map((data): Anthropic.DocumentBlockParam => {
        return { type: "document", source: { type: "text", media_type: "text/plain", data } };
      });
      const content: Anthropic.ContentBlockParam[] = [...documents, { type: "text", text: question }];
      const messages: Anthropic.MessageParam[] = [{ role: "user", content }];
      const params = { model: suite.model, max_tokens: 40, temperature: 0, messages, ...fields };
      return { custom_id, params };
    };
    const ended = async (id: string): Promise<Anthropic.Messages.MessageBatch> => {
      for (;;) {
        const batch = await client.messages.batches.retrieve(id);
        if (batch.processing_status === "ended") return batch;
        await Bun.sleep(20);
      }
    };
    const resultsOf = async (id: string) => await Array.fromAsync(await client.messages.batches.results(id));
    const none = { processing: 0, succeeded: 0, errored: 0, canceled: 0, expired: 0 };

    beforeAll(async () => {
      const { apiKey } = await suite.tenant("anthropic-batches");
      client = new Anthropic({ baseURL: suite.url, apiKey, maxRetries: 0 });
    });

    test("messages and errors as a stream of results, by the client and by its beta", async () => {
      const requests = [request("first"), request("wrong", { top_p: 9 }), request("long", { max_tokens: 1 })];
      const made = await client.messages.batches.create({ requests });
      expect(made).toMatchObject({ type: "message_batch", request_counts: { ...none, processing: 3 } });
      expect(Date.parse(made.expires_at) - Date.parse(made.created_at)).toBe(86_400_000);
      const batch = await ended(made.id);
      expect(batch.request_counts).toEqual({ ...none, succeeded: 2, errored: 1 });
      const results = new Map((await resultsOf(made.id)).map(({ custom_id: id, result }) => [id, result]));
      const [first, wrong, long] = ["first", "wrong", "long"].map((id) => results.get(id));
      if (first?.type !== "succeeded" || wrong?.type !== "errored" || long?.type !== "succeeded")
        throw new Error("types");
      expect(JSON.stringify(first.message.content)).toContain(answer);
      expect(long.message).toMatchObject({ stop_reason: "max_tokens", usage: { output_tokens: 1 } });
      expect(wrong.error).toMatchObject({ type: "error", error: { type: "invalid_request_error" } });
      expect(wrong.error.error.message).toContain("top_p");
      const { batches } = client.beta.messages;
      const results2 = await Array.fromAsync(await batches.results(made.id));
      expect(results2.map(({ custom_id: id }) => id)).toEqual(requests.map(({ custom_id: id }) => id));
      expect((await Array.fromAsync(batches.list())).map(({ id }) => id)).toContain(made.id);
    });

    test("pages both ways, cancels and deletes", async () => {
      const messages = [{ role: "user", content: "Names:" }];
      const format = { type: "json_schema" as const, schema: longSchema };
      const endless = { max_tokens: 2_000, messages, output_config: { format } };
      const slow = Array.from({ length: 40 }, (_, i) => request(`${i}`, endless));
      const running = await client.messages.batches.create({ requests: slow });
      for (let i = 0; i < 3; i++) await client.messages.batches.create({ requests: [request("one")] });
      const list = async (params: Anthropic.Messages.BatchListParams): Promise<string[]> => {
        const batches = await Array.fromAsync(client.messages.batches.list(params));
        return batches.map(({ id }) => id);
      };
      const ids = await list({ limit: 2 });
      expect(new Set(ids).size).toBe(5);
      expect(ids[3]).toBe(running.id);
      const back = await list({ limit: 2, before_id: ids[4] ?? "" });
      expect(back.toSorted()).toEqual(ids.slice(0, 4).toSorted());
      const early = client.messages.batches.results(running.id);
      expect(await thrownBy(early)).toBeInstanceOf(Anthropic.AnthropicError);
      expect(await thrownBy(client.messages.batches.delete(running.id))).toBeInstanceOf(Anthropic.ConflictError);
      expect((await client.messages.batches.cancel(running.id)).processing_status).toBe("canceling");
      const { request_counts: counts } = await ended(running.id);
      expect(counts.succeeded + counts.canceled).toBe(40);
      expect(counts.canceled).toBeGreaterThan(0);
      const types = (await resultsOf(running.id)).map(({ result }) => result.type);
      expect(types.filter((type) => type === "canceled")).toHaveLength(counts.canceled);
      const gone = { id: running.id, type: "message_batch_deleted" } as const;
      expect(await client.messages.batches.delete(running.id)).toEqual(gone);
      expect(await thrownBy(client.messages.batches.retrieve(running.id))).toBeInstanceOf(Anthropic.NotFoundError);
      await suite.untilNothingRuns();
    });

    test("refusals name the request", async () => {
      const twice = await thrownBy(client.messages.batches.create({ requests: [request("a"), request("a")] }));
      expect(twice).toBeInstanceOf(Anthropic.BadRequestError);
      expect((twice as Error).message).toContain("requests[1].custom_id");
    });

    test("a batch goes on after a restart of the server", async () => {
      const requests = Array.from({ length: 16 }, (_, i) => request(`${i}`));
      const { id } = await client.messages.batches.create({ requests });
      await suite.stopServer();
      await suite.startAgain();
      expect((await ended(id)).request_counts).toEqual({ ...none, succeeded: 16 });
      expect((await resultsOf(id)).map(({ custom_id }) => custom_id)).toEqual(
        requests.map(({ custom_id }) => custom_id),
      );
    });
  });
}
