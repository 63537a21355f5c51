import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { type DemoCorpus, demoAnswerTokens, readDemoCorpora } from "../../gateway/cli/demo-corpora.ts";
import { prepareStore } from "../../gateway/cli/support/operations.ts";
import { isLong } from "../support/effort.ts";
import { type ChatParams, createStore, errorOf, openaiClient, spangateOf } from "../support/openai.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

// A server starts in each of these tests.
setDefaultTimeout(60_000);

const corpora = readDemoCorpora();

/** Retrieved text and a question as the default prompts of two libraries write them. */
const pastedForms: Record<string, (context: string, question: string) => ChatParams["messages"]> = {
  LlamaIndex: (context, question) => {
    const line = "---------------------";
    const asked = "Given the context information and not prior knowledge, answer the query.";
    const content = `Context information is below.\n${line}\n${context}\n${line}\n${asked}\nQuery: ${question}\nAnswer: `;
    return [{ role: "user", content }];
  },
  LangChain: (context, question) => {
    const task =
      "You are an assistant for question-answering tasks. Use the following pieces of retrieved context to answer the question. " +
      "If you don't know the answer, just say that you don't know. Use three sentences maximum and keep the answer concise.";
    return [
      { role: "system", content: `${task}\n\n${context}` },
      { role: "user", content: question },
    ];
  },
};

describe("two tenants, each with its documents", () => {
  let server: TestServer;
  const parties: { corpus: DemoCorpus; tenant: TestTenant; storeId: string }[] = [];

  beforeAll(async () => {
    server = await startTestServer();
    for (const corpus of corpora.slice(0, 2)) {
      const tenant = await server.tenant(corpus.tenant);
      const texts = Object.fromEntries(corpus.documents.map(({ name, text }) => [name, text]));
      parties.push({
        corpus,
        tenant,
        storeId: await createStore(openaiClient(server.url, tenant.apiKey), corpus.tenant, texts),
      });
    }
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  const party = (index: number) => {
    const found = parties[index];
    if (found === undefined) throw new Error(`no demo corpus ${index}`);
    return { ...found, client: openaiClient(server.url, found.tenant.apiKey) };
  };
  const searchChat = (storeId: string, content: string): ChatParams => ({
    model: server.model,
    messages: [{ role: "user", content }],
    file_search: { vector_store_ids: [storeId], max_num_results: 6 },
    temperature: 0,
    max_tokens: demoAnswerTokens,
  });

  test("prepares every fragment, with progress that rises to the total", async () => {
    for (const { tenant, storeId } of parties) {
      const seen: number[] = [];
      const job = await prepareStore(tenant.client, storeId, ({ done }) => seen.push(done));
      expect(job).toMatchObject({ status: "completed", done: job.total });
      expect(job.total).toBeGreaterThan(0);
      expect(seen).toEqual(seen.toSorted((a, b) => a - b));
    }
  });

  test("answers the shipped questions from prepared fragments", async () => {
    const misses: string[] = [];
    for (const index of [0, 1]) {
      const { client, corpus, storeId } = party(index);
      // Every other one: the long form asks them all.
      for (const { question, answer: expected } of corpus.questions.filter((_, at) => isLong || at % 2 === 0)) {
        const answer = await client.chat.completions.create(searchChat(storeId, question));
        const text = answer.choices[0]?.message.content ?? "";
        if (!text.includes(expected)) misses.push(`${question} ${text} (not: ${expected})`);
        const { spans } = spangateOf(answer);
        expect(spans.length).toBeGreaterThan(0);
        expect(spans.every(({ source }) => source === "device")).toBe(true);
        const spanTokens = spans.reduce((sum, { tokens }) => sum + tokens, 0);
        expect(answer.usage?.prompt_tokens_details?.cached_tokens).toBeGreaterThanOrEqual(spanTokens);
      }
    }
    expect(misses).toEqual([]);
  });

  test("what is prepared answers as what is computed", async () => {
    const { client, corpus, storeId } = party(0);
    for (const { question } of corpus.questions.slice(0, 8)) {
      const prepared = await client.chat.completions.create(searchChat(storeId, question));
      const computed = await client.chat.completions.create({
        ...searchChat(storeId, question),
        ...{ spangate: { reuse: false } },
      });
      expect(computed.usage?.prompt_tokens_details?.cached_tokens).toBe(0);
      expect(prepared.choices[0]?.message.content).toBe(computed.choices[0]?.message.content ?? "");
    }
  });

  test("search finds the text, attributes and ids lead nowhere else", async () => {
    const { client, corpus, storeId } = party(0);
    const [first] = corpus.questions;
    const found = await client.vectorStores.search(storeId, { query: first?.question ?? "" });
    expect(found.data.length).toBeGreaterThan(0);
    const texts = corpus.documents.map(({ text }) => text).join("\n");
    for (const { content } of found.data) expect(texts).toContain(content[0]?.text.trim() ?? "?");
  });

  test("another tenant's objects answer like none at all", async () => {
    const [owner, other] = [party(0), party(1)];
    const [file] = (await owner.client.vectorStores.files.list(owner.storeId)).data;
    const nobody = { storeId: "vs_000000000000000000000000", fileId: "file-000000000000000000000000" };
    const calls = (storeId: string, fileId: string) => [
      () => other.client.vectorStores.retrieve(storeId),
      () => other.client.vectorStores.files.list(storeId),
      () => other.client.vectorStores.search(storeId, { query: "x" }),
      () => other.client.vectorStores.delete(storeId),
      () => other.client.files.retrieve(fileId),
      () => other.client.files.content(fileId),
      () => other.client.files.delete(fileId),
      () => other.client.vectorStores.files.create(other.storeId, { file_id: fileId }),
      () => other.client.chat.completions.create(searchChat(storeId, "Who?")),
      () => other.tenant.client.json("POST", `/admin/v1/vector_stores/${storeId}/prepare`),
    ];
    const [theirs, none] = [calls(owner.storeId, file?.id ?? ""), calls(nobody.storeId, nobody.fileId)];
    for (const [index, call] of theirs.entries()) {
      const [seen, unseen] = [await statusAndBody(call()), await statusAndBody(none[index]?.() ?? Promise.resolve())];
      expect(seen.status).toBe(404);
      expect(seen).toEqual(unseen);
    }
    expect((await other.client.files.list()).data.map(({ id }) => id)).not.toContain(file?.id ?? "");
    expect((await owner.client.vectorStores.retrieve(owner.storeId)).id).toBe(owner.storeId);
  });

  test("the same text of another tenant is never found in the cache", async () => {
    const documents = [{ text: "- The extension of Nora Lind is 5512.\n- Nora Lind likes rowing." }];
    const ask = async (index: number) => {
      const { client } = party(index);
      const params: ChatParams = {
        model: server.model,
        messages: [{ role: "user", content: "What is the extension of Nora Lind?" }],
        documents,
        max_tokens: 20,
        temperature: 0,
      };
      return await client.chat.completions.create(params);
    };
    expect((await ask(0)).usage?.prompt_tokens_details?.cached_tokens).toBe(0);
    expect((await ask(0)).usage?.prompt_tokens_details?.cached_tokens).toBeGreaterThan(0);
    const others = await ask(1);
    expect(others.usage?.prompt_tokens_details?.cached_tokens).toBe(0);
    expect(spangateOf(others).spans.map(({ source }) => source)).toEqual(["computed"]);
  });

  test.each(Object.entries(pastedForms))("answers from pages pasted in %s's words", async (_name, paste) => {
    const { client, corpus } = party(0);
    const pages = corpus.documents.filter(({ name }) => ["bread-course.md", "sourdough-starter.md"].includes(name));
    expect(pages).toHaveLength(2);
    const context = pages.map(({ text }) => text.trim()).join("\n\n");
    const asked = [
      ["How much does a place on the bread course cost?", "65 euros"],
      ["How often should the jar be fed?", "once a week"],
      ["Where was the course held until 2019?", "the old mill"],
    ] as const;
    for (const [question, words] of asked) {
      const messages = paste(context, question);
      const answer = await client.chat.completions.create({ model: server.model, messages, temperature: 0 });
      expect(answer.choices[0]?.message.content).toContain(words);
    }
  });

  test("a deleted document is gone from search", async () => {
    const { client } = party(0);
    const storeId = await createStore(client, "short-lived", { "a.md": "The password of the attic is Zanzibar." });
    expect((await client.vectorStores.search(storeId, { query: "password attic" })).data).toHaveLength(1);
    const [file] = (await client.vectorStores.files.list(storeId)).data;
    await client.vectorStores.files.delete(file?.id ?? "", { vector_store_id: storeId });
    expect((await client.vectorStores.search(storeId, { query: "password attic" })).data).toEqual([]);
    expect(
      (await errorOf(client.vectorStores.files.retrieve(file?.id ?? "", { vector_store_id: storeId }))).status,
    ).toBe(404);
  });
});

/** Status and message of what a call threw, with the object's id taken out so that two answers can be compared. */
async function statusAndBody(call: Promise<unknown>): Promise<{ status: number | undefined; message: string }> {
  try {
    await call;
    return { status: 200, message: "" };
  } catch (error) {
    const { status, message } = error as { status?: number; message: string };
    return { status, message: message.replaceAll(/(?:vs_|file-)[0-9a-zA-Z]+/g, "ID") };
  }
}
