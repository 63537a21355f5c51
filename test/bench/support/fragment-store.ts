/** Vector stores whose fragments have the same length or are given texts, and questions over them. */
import { HttpClient } from "../../../gateway/cli/support/client.ts";
import { CommandError } from "../../../gateway/cli/support/command.ts";
import {
  addFile,
  askChat,
  type ChatAnswer,
  listAll,
  prepareStore,
  waitForFile,
} from "../../../gateway/cli/support/operations.ts";
import type { ChatAnswer as QueryAnswer, SpanSummary } from "../../../gateway/client/answers.ts";
import type { TestServer } from "../../support/server.ts";
import type { SpanTexts } from "./prompts.ts";

export interface FragmentStore {
  readonly id: string;
  readonly fragments: number;
  /** Of each fragment's span. */
  readonly tokens: number;
}

export interface TextStore {
  readonly id: string;
  /** Ids of its fragments. */
  readonly fragments: readonly string[];
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

/**
 * A store of these texts, each a fragment.
 * @param tokens of a fragment at most
 * @param textsPerFile 1 where two texts would fit into one fragment
 */
export async function ingestTexts(
  client: HttpClient,
  texts: readonly string[],
  tokens: number,
  textsPerFile = 500,
): Promise<TextStore> {
  const { id } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "texts" });
  const chunking = { type: "static", static: { max_chunk_size_tokens: tokens, chunk_overlap_tokens: 0 } } as const;
  for (let at = 0; at < texts.length; at += textsPerFile) {
    const file = new Blob([texts.slice(at, at + textsPerFile).join("\n\n")]);
    await waitForFile(client, id, await addFile(client, id, `${at}.txt`, file, { chunking_strategy: chunking }));
  }
  const listed = await listAll<{ id: string }>(client, `/admin/v1/vector_stores/${id}/fragments`);
  if (listed.length !== texts.length) throw new CommandError(`${texts.length} texts are ${listed.length} fragments`);
  return { id, fragments: listed.map((fragment) => fragment.id) };
}

/** The answer to a question over fragments, at temperature 0, and where each fragment's KV came from. */
export async function askFragments(
  client: HttpClient,
  fragments: readonly string[],
  { system, user }: { readonly system?: string; readonly user: string },
  maxTokens: number,
): Promise<{ readonly text: string; readonly sources: readonly SpanSummary["source"][] }> {
  const plus = fragments.map((id) => ({ fragment: { id } }));
  const cross = [...(system === undefined ? [] : [{ system }]), { plus }, { user }];
  const g = { model: "", temperature: 0, max_tokens: maxTokens, min_tokens: 1, input: { cross } };
  const { choices, spangate } = await client.json<QueryAnswer>("POST", "/v1/query/execute", { g });
  return { text: choices[0]?.message.content ?? "", sources: spangate.spans.map(({ source }) => source) };
}
