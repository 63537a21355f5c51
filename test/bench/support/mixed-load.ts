/**
 * A mixed load of a RAG server: questions over prepared vector stores, questions with documents of their own of which
 * some are asked about much, and plain chat. The same requests for every server.
 */

import { readDemoCorpora } from "../../../gateway/cli/demo-corpora.ts";
import { CommandError } from "../../../gateway/cli/support/command.ts";
import {
  addFile,
  askChat,
  type ChatAnswer,
  prepareStore,
  waitForFile,
} from "../../../gateway/cli/support/operations.ts";
import type { TestServer, TestTenant } from "../../support/server.ts";
import { fillerWords, SpanTexts } from "./prompts.ts";
import { drawQueries, randomNumbers } from "./reuse-order.ts";

/** Parts of the load; the rest is plain chat. */
const searchShare = 0.6;
const documentShare = 0.3;
const documentCount = 200;
const documentsPerQuestion = 4;
const fragmentsPerSearch = 6;
const zipf = 1.1;

interface StoreText {
  readonly tenant: string;
  readonly documents: readonly { readonly name: string; readonly text: string }[];
  readonly questions: readonly string[];
}

export interface LoadShape {
  /** Tokens of a document that comes with a question, and of an answer. */
  readonly documentTokens: number;
  readonly answerTokens: number;
  /** What the vector stores hold and are asked, one tenant each. */
  readonly stores: readonly StoreText[];
}

/** Short documents and answers, and the demo's stores: what a CPU answers in a second. */
export function shortLoad(): LoadShape {
  const stores = readDemoCorpora().map(({ tenant, documents, questions }) => {
    return { tenant, documents, questions: questions.map(({ question }) => question) };
  });
  return { documentTokens: 128, answerTokens: 32, stores };
}

/** Pages of text and answers of some sentences, for a model of billions of weights. */
export function longLoad(): LoadShape {
  const stores = ["north", "south"].map((tenant, store) => {
    const seeds = Array.from({ length: 48 }, (_, index) => 70_000 + 1_000 * store + index);
    return {
      tenant,
      documents: seeds.map((seed) => ({ name: `${seed}.txt`, text: sentences(fillerWords(seed, 480)) })),
      questions: Array.from({ length: 2_400 }, (_, index) => {
        const page = seeds[(index * 29) % seeds.length];
        return `What does page ${page}: tell of ${fillerWords(90_000 + index, 10)
          .slice(1)
          .join(" ")}?`;
      }),
    };
  });
  return { documentTokens: 1_024, answerTokens: 64, stores };
}

function sentences(words: readonly string[]): string {
  return words.map((word, index) => (index % 12 === 11 ? `${word}.` : word)).join(" ");
}

interface Party {
  readonly tenant: TestTenant;
  readonly questions: readonly string[];
  readonly storeId: string;
}

async function openParty(server: TestServer, store: StoreText): Promise<Party> {
  const tenant = await server.tenant(store.tenant);
  const { client } = tenant;
  const { id: storeId } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: store.tenant });
  const fileIds: string[] = [];
  for (const { name, text } of store.documents) fileIds.push(await addFile(client, storeId, name, new Blob([text])));
  for (const fileId of fileIds) await waitForFile(client, storeId, fileId);
  await prepareStore(client, storeId, () => undefined);
  return { tenant, questions: store.questions, storeId };
}

export type Asker = (index: number) => Promise<ChatAnswer>;

/** Fills the stores, prepares them, and answers what asks the n-th of so many requests. */
export async function openMixedLoad(server: TestServer, shape: LoadShape, requestCount: number): Promise<Asker> {
  const parties: Party[] = [];
  for (const store of shape.stores) parties.push(await openParty(server, store));
  const texts = new SpanTexts();
  const documents = Array.from({ length: documentCount }, (_, index) =>
    texts.textOf(shape.documentTokens, 30_000 + index),
  );
  const workload = { fragmentsPerQuery: documentsPerQuestion, fragmentCount: documentCount, zipf, seed: 5 };
  const queries = drawQueries({ ...workload, queryCount: requestCount });
  const random = randomNumbers(6);
  const kinds = queries.map(() => random());
  return async (index) => {
    const party = parties[index % parties.length];
    const kind = kinds[index];
    if (party === undefined || kind === undefined) throw new CommandError(`there is no request ${index}`);
    const { tenant, questions, storeId } = party;
    const question = questions[Math.floor(index / parties.length) % questions.length] ?? "";
    const own = fillerWords(index + 50_000, 12).join(" ");
    const isSearch = kind < searchShare;
    const asked = isSearch
      ? { file_search: { vector_store_ids: [storeId], max_num_results: fragmentsPerSearch } }
      : kind < searchShare + documentShare
        ? { documents: (queries[index] ?? []).map((id) => ({ text: documents[id] ?? "" })) }
        : {};
    return await askChat(tenant.client, {
      model: server.model,
      messages: [{ role: "user", content: isSearch ? question : own }],
      ...asked,
      temperature: 0,
      max_tokens: shape.answerTokens,
      min_tokens: shape.answerTokens,
      ignore_eos: true,
    });
  };
}
