/** The official client against a server of ours, with the fields that we add to its types. */
import OpenAI, { toFile } from "openai";

interface RagFields {
  readonly documents?: readonly { readonly title?: string; readonly text: string }[];
  readonly file_search?: { readonly vector_store_ids: readonly string[]; readonly max_num_results?: number };
  readonly spangate?: { readonly reuse?: boolean };
  readonly min_tokens?: number;
  readonly ignore_eos?: boolean;
}

export type ChatParams = OpenAI.ChatCompletionCreateParamsNonStreaming & RagFields;
export type ChatStreamParams = OpenAI.ChatCompletionCreateParamsStreaming & RagFields;

export interface SpangateFields {
  readonly spangate: {
    readonly request_id: string;
    readonly worker: string;
    readonly ttft_ms: number;
    readonly spans: readonly { readonly id: string; readonly tokens: number; readonly source: string }[];
  };
}

/** No retries: a test wants to see the first answer. */
export function openaiClient(url: string, apiKey: string, maxRetries = 0): OpenAI {
  return new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries, timeout: 60_000 });
}

/** The report that our server adds to a completion or to a stream's usage chunk. */
export function spangateOf(answer: object): SpangateFields["spangate"] {
  if (!("spangate" in answer)) throw new Error("the answer has no spangate object");
  return (answer as SpangateFields).spangate;
}

/** Uploads texts into a new vector store and waits until they are ingested. */
export async function createStore(
  client: OpenAI,
  name: string,
  texts: Readonly<Record<string, string>>,
): Promise<string> {
  const store = await client.vectorStores.create({ name });
  for (const [fileName, text] of Object.entries(texts)) {
    const file = await client.files.create({ file: await toFile(Buffer.from(text), fileName), purpose: "assistants" });
    const added = await client.vectorStores.files.createAndPoll(store.id, { file_id: file.id }, { pollIntervalMs: 50 });
    if (added.status !== "completed") throw new Error(`${fileName}: ${added.status}, ${added.last_error?.message}`);
  }
  return store.id;
}

/** What the call threw. @throws Error when it did not throw. */
export async function errorOf(call: Promise<unknown>): Promise<InstanceType<typeof OpenAI.APIError>> {
  try {
    await call;
  } catch (error) {
    if (error instanceof OpenAI.APIError) return error;
    throw error;
  }
  throw new Error("the call succeeded");
}
