/** Vector stores of prepared fragments that have the same length, and questions over all of a store's fragments. */
import { HttpClient } from "../../../gateway/cli/support/client.ts";
import { CommandError } from "../../../gateway/cli/support/command.ts";
import {
  addFile,
  askChat,
  type ChatAnswer,
  prepareStore,
  waitForFile,
} from "../../../gateway/cli/support/operations.ts";
import type { TestServer } from "../../support/server.ts";
import type { SpanTexts } from "./prompts.ts";

export interface FragmentStore {
  readonly id: string;
  readonly fragments: number;
  /** Of each fragment's span. */
  readonly tokens: number;
}

/** Makes the store and prepares it. */
export async function makeFragmentStore(
  client: HttpClient,
  texts: SpanTexts,
  fragments: number,
  tokens: number,
): Promise<FragmentStore> {
  const { id } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: `${fragments} x ${tokens}` });
  const chunking = {
    type: "static",
    static: { max_chunk_size_tokens: Math.max(100, tokens), chunk_overlap_tokens: 0 },
  } as const;
  for (let index = 0; index < fragments; index++) {
    const text = texts.textOf(tokens, tokens * 100 + index);
    const fileId = await addFile(client, id, `${index}.txt`, new Blob([text]), { chunking_strategy: chunking });
    await waitForFile(client, id, fileId, 10);
  }
  await prepareStore(client, id, () => undefined);
  return { id, fragments, tokens };
}

/** Asks over all fragments of a store. Every question is another one, so that only fragments can be found. */
export class StoreAsker {
  readonly #apiKey: string;
  #asked = 0;

  constructor(apiKey: string) {
    this.#apiKey = apiKey;
  }

  async ask(
    server: Pick<TestServer, "url" | "model">,
    { id, fragments }: FragmentStore,
    reuse: boolean,
  ): Promise<ChatAnswer> {
    this.#asked += 1;
    const answer = await askChat(new HttpClient({ url: server.url, apiKey: this.#apiKey }), {
      model: server.model,
      messages: [{ role: "user", content: `${this.#asked} amber birch cedar delta ember fjord grove heron?` }],
      file_search: { vector_store_ids: [id], max_num_results: fragments },
      temperature: 0,
      max_tokens: 1,
      min_tokens: 1,
      ignore_eos: true,
      ...(reuse ? {} : { spangate: { reuse: false } }),
    });
    const { spans } = answer.spangate;
    if (spans.length !== fragments) throw new CommandError(`${spans.length} of ${fragments} fragments were found`);
    return answer;
  }
}
