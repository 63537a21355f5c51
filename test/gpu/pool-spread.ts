/** Stores that have no room everywhere: each has its fragments on one worker, but for those that are asked about much. */
import { addFile, askChat, prepareStore, waitForFile } from "../../gateway/cli/support/operations.ts";
import { fillerWords } from "../bench/support/prompts.ts";
import { cacheOf, workersOf } from "../support/operator.ts";
import type { TestServer } from "../support/server.ts";
import { assertThat } from "./report.ts";

const storeCount = 8;
const wordsOfStore = 1_200;
/** More than make a fragment hot. */
const hotQuestions = 24;

interface Store {
  readonly tenantId: string;
  readonly ask: (question: string) => Promise<string>;
  readonly prepare: () => Promise<unknown>;
  /** Fragment blocks on each worker. */
  readonly held: () => Promise<number[]>;
}

async function openStore(server: TestServer, number: number): Promise<Store> {
  const { id: tenantId, client } = await server.tenant(`cold-${number}`);
  const { id } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: `cold-${number}` });
  const words = fillerWords(80_000 + number, wordsOfStore);
  const text = words.map((word, index) => (index % 10 === 9 ? `${word}.` : word)).join(" ");
  await waitForFile(client, id, await addFile(client, id, "words.txt", new Blob([text])));
  await prepareStore(client, id, () => undefined);
  const workerIds = (await workersOf(server)).map((worker) => worker.id);
  return {
    tenantId,
    ask: async (content) => {
      const { model } = server;
      const messages = [{ role: "user", content }];
      const file_search = { vector_store_ids: [id], max_num_results: 50 };
      return (await askChat(client, { model, messages, file_search, max_tokens: 1, temperature: 0 })).spangate.worker;
    },
    prepare: () => prepareStore(client, id, () => undefined),
    held: async () => {
      const cache = await cacheOf(server, tenantId);
      const blocksOn = (workerId: string) => cache?.workers.find(({ worker }) => worker === workerId)?.fragment_blocks;
      return workerIds.map((workerId) => blocksOn(workerId) ?? 0);
    },
  };
}

/** @returns a line of what was seen. @throws Error when it is not as promised */
export async function spreadCold(server: TestServer): Promise<string> {
  const stores: Store[] = [];
  for (let number = 0; number < storeCount; number++) stores.push(await openStore(server, number));
  const before = await Promise.all(stores.map((store) => store.held()));
  const single = before.filter((blocks) => blocks.filter((count) => count > 0).length === 1);
  const homes = [0, 1].map((index) => single.filter((blocks) => (blocks[index] ?? 0) > 0).length);
  assertThat(
    single.length >= 2 && homes.every((count) => count > 0),
    `blocks of each store: ${JSON.stringify(before)}`,
  );
  const coldIndex = before.findLastIndex((blocks) => blocks.filter((count) => count > 0).length === 1);
  const hot = stores[coldIndex];
  if (hot === undefined) throw new Error("no store is on one worker alone");
  const home = `worker-${before[coldIndex]?.findIndex((count) => count > 0)}`;
  const answeredBy: string[] = [];
  for (let n = 0; n < hotQuestions; n++) answeredBy.push(await hot.ask(fillerWords(90_000 + n, 16).join(" ")));
  const atHome = answeredBy.filter((worker) => worker === home).length;
  assertThat(
    atHome === hotQuestions,
    `${atHome} of ${hotQuestions} questions went to ${home}, which has the fragments`,
  );
  await hot.prepare();
  const after = await hot.held();
  assertThat(Math.min(...after) === Math.max(...after), `the hot store's blocks: ${after.join(" and ")}`);
  return [
    `blocks of ${storeCount} stores on each worker: ${JSON.stringify(before)}`,
    `${atHome} of ${hotQuestions} questions about one that is on ${home} alone went there`,
    `prepared again after that it is on both: ${after.join(" and ")}`,
  ].join("; ");
}
