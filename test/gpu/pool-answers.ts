/** The demo's questions over its stores, each answered from prepared fragments and from a prompt computed whole. */
import { type DemoCorpus, demoAnswerTokens } from "../../gateway/cli/demo-corpora.ts";
import { addFile, askChat, type ChatAnswer, prepareStore, waitForFile } from "../../gateway/cli/support/operations.ts";
import type { TestServer, TestTenant } from "../support/server.ts";

export interface Store {
  readonly tenant: TestTenant;
  readonly corpus: DemoCorpus;
  readonly storeId: string;
}

interface Answered {
  readonly expected: string;
  readonly isOfDemo: boolean;
  readonly prepared: ChatAnswer;
  readonly computed: ChatAnswer;
}

/** As many questions as the demo asks of a tenant, evenly from all. */
const demoQuestions = 6;

/** A tenant with the corpus in a store of its own, prepared. */
export async function openStore(server: TestServer, corpus: DemoCorpus): Promise<Store> {
  const tenant = await server.tenant(corpus.tenant);
  const { client } = tenant;
  const { id: storeId } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: corpus.tenant });
  for (const { name, text } of corpus.documents) {
    await waitForFile(client, storeId, await addFile(client, storeId, name, new Blob([text])));
  }
  await prepareStore(client, storeId, () => undefined);
  return { tenant, corpus, storeId };
}

/** All at once, so that every worker answers some. */
export async function askQuestions({ model }: TestServer, store: Store): Promise<Answered[]> {
  const { tenant, corpus, storeId } = store;
  const step = corpus.questions.length / demoQuestions;
  const ask = (question: string, reuse: boolean): Promise<ChatAnswer> =>
    askChat(tenant.client, {
      model,
      messages: [{ role: "user", content: question }],
      file_search: { vector_store_ids: [storeId], max_num_results: 6 },
      temperature: 0,
      max_tokens: demoAnswerTokens,
      ...(reuse ? {} : { spangate: { reuse: false } }),
    });
  return await Promise.all(
    corpus.questions.map(async ({ question, answer: expected }, index) => ({
      expected,
      isOfDemo: Math.floor(index / step) !== Math.floor((index - 1) / step),
      prepared: await ask(question, true),
      computed: await ask(question, false),
    })),
  );
}

export function rightAnswers(answers: readonly Answered[]): {
  readonly count: number;
  readonly ofDemo: number;
  readonly words: string;
} {
  const isRight = ({ prepared, computed, expected }: Answered): boolean =>
    prepared.text.includes(expected) && computed.text.includes(expected);
  const right = answers.filter(isRight);
  const ofDemo = right.filter((answer) => answer.isOfDemo).length;
  const same = answers.filter(({ prepared, computed }) => prepared.text === computed.text).length;
  const all = answers.flatMap(({ prepared, computed }) => [prepared, computed]);
  const perWorker = Object.groupBy(all, ({ spangate }) => spangate.worker);
  const counts = Object.entries(perWorker).map(([id, list]) => `${id} ${list?.length}`);
  const found = answers.map(({ prepared: { usage } }) => usage.prompt_tokens_details.cached_tokens);
  const asked = answers.map(({ prepared: { usage } }) => usage.prompt_tokens);
  const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
  const words = [
    `${ofDemo} of the demo's 12 and ${right.length} of ${answers.length} as expected, ${same} the same both ways`,
    `answered by ${counts.sort().join(", ")}`,
    `prepared: ${((100 * sum(found)) / sum(asked)).toFixed(1)} % of prompt tokens found`,
  ];
  return { count: right.length, ofDemo, words: words.join("; ") };
}
