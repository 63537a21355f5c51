/** Collects the conversation that a response answers: items of earlier responses, items that the request names by id, and its own. */
import type { ResponseId, TenantId } from "../../../db/ids.ts";
import type { ResponseHead } from "../../../db/responses.ts";
import type { JsonObject } from "../../../db/schema.ts";
import { ApiError } from "../../base/errors.ts";
import { yieldToOthers } from "../../base/pace.ts";
import { limits } from "../../config.ts";
import type { StoredResponses } from "../../tenant/stored-responses.ts";
import type { RequestBudget } from "../transport/request-budget.ts";
import type { Item, ItemReference } from "./input-items.ts";
import type { ResponsePrompt } from "./schema.ts";

/** An item as it is stored; an item of another response is stored as its id alone. */
type KeptItem = Item | ItemReference;

export interface Conversation {
  readonly items: readonly Item[];
  /** Numbers of the stored rows that items came from. */
  readonly usedSeqs: readonly number[];
}

export interface ConversationDeps {
  readonly stored: StoredResponses;
  readonly tenantId: TenantId;
  readonly budget: Pick<RequestBudget, "takeParsed" | "takeRows">;
}

/** @throws ApiError not_found for another tenant's response as for one that never was; invalid_value with `param` */
export async function conversationOf(deps: ConversationDeps, parsed: ResponsePrompt): Promise<Conversation> {
  const reader = new ConversationReader(deps);
  const { previous_response_id: previous } = parsed.body;
  const earlier = previous === undefined ? [] : await reader.upTo(previous, "previous_response_id");
  const own: Item[] = [];
  for (const [index, item] of parsed.items.entries()) {
    if (item.type === "item_reference") own.push(await reader.referred(item, `input[${index}].id`));
    else own.push(item);
  }
  return { items: [...earlier, ...own], usedSeqs: reader.usedSeqs };
}

/** What a kept response was given to. @throws ApiError not_found, invalid_value */
export async function inputItemsOf(deps: ConversationDeps, responseId: string): Promise<readonly Item[]> {
  const reader = new ConversationReader(deps);
  const turns = await reader.turns(deps.stored.get(deps.tenantId, responseId), "response_id");
  return turns.flatMap((turn, index) => (index === turns.length - 1 ? turn.input : [...turn.input, ...turn.output]));
}

interface Turn {
  readonly input: readonly Item[];
  readonly output: readonly Item[];
}

/** An item's id is its response's under another prefix; a number at its end tells those of the input apart. */
const itemId = /^([a-z]+)_([a-z0-9]+)(_\d+)?$/;

/** Reads stored rows for one request: each once, however often it is referred to, and lets others run in between. */
class ConversationReader {
  readonly #deps: ConversationDeps;
  readonly #parts = new Map<string, readonly KeptItem[]>();
  readonly #byId = new Map<string, Item>();
  readonly #bytesOf = new Map<Item, number>();
  readonly #used = new Set<number>();
  #bytes = 0;
  #count = 0;

  constructor(deps: ConversationDeps) {
    this.#deps = deps;
  }

  get usedSeqs(): readonly number[] {
    return [...this.#used];
  }

  /** The conversation up to a response, its answer included. */
  async upTo(responseId: string, param: string): Promise<readonly Item[]> {
    const { stored, tenantId } = this.#deps;
    const head = naming(param, () => stored.get(tenantId, responseId));
    this.#used.add(head.seq);
    return (await this.turns(head, param)).flatMap(({ input, output }) => [...input, ...output]);
  }

  /** All turns of a conversation, the oldest first. */
  async turns(last: ResponseHead, param: string): Promise<readonly Turn[]> {
    const { stored, tenantId } = this.#deps;
    const turns: Turn[] = [];
    for (let head: ResponseHead = last; ; ) {
      const output = this.#taken((await this.#part(head, "body")) as readonly Item[], param);
      const input: Item[] = [];
      for (const item of await this.#part(head, "inputItems")) {
        const whole = item.type === "item_reference" ? await this.#find(item.id, false) : item;
        if (whole === undefined) throw broken(param);
        input.push(...this.#taken([whole], param));
      }
      turns.unshift({ input, output });
      if (head.previousId === null) return turns;
      const earlier = stored.earlier(tenantId, head.previousId);
      if (earlier === undefined) throw broken(param);
      head = earlier;
    }
  }

  /** Finds an item that a client names by its id. */
  async referred({ id }: ItemReference, param: string): Promise<Item> {
    const item = await this.#find(id, true);
    if (item === undefined) throw new ApiError("not_found", { param });
    return this.#taken([item], param)[0] ?? item;
  }

  /** @param isEntry true when the client named the id, so that only a stored response counts; undefined where there is none */
  async #find(id: string, isEntry: boolean): Promise<Item | undefined> {
    const known = this.#byId.get(id);
    if (known !== undefined) return known;
    const [, prefix = "", own, number] = itemId.exec(id) ?? [];
    if (own === undefined) return undefined;
    const head = this.#headOf(`resp_${own}`, isEntry);
    if (head === undefined) return undefined;
    if (isEntry) this.#used.add(head.seq);
    const isAnswer = prefix === "fc" || number === undefined;
    const items = await this.#part(head, isAnswer ? "body" : "inputItems");
    const item = items.find((each) => (each as { id?: string }).id === id);
    if (item === undefined || item.type === "item_reference") return undefined;
    this.#byId.set(id, item);
    return item;
  }

  #headOf(responseId: string, isEntry: boolean): ResponseHead | undefined {
    const { stored, tenantId } = this.#deps;
    if (!isEntry) return stored.earlier(tenantId, responseId);
    try {
      return stored.get(tenantId, responseId);
    } catch (error) {
      if (error instanceof ApiError && error.code === "not_found") return undefined;
      throw error;
    }
  }

  async #part(head: ResponseHead, part: "body" | "inputItems"): Promise<readonly KeptItem[]> {
    const key = `${head.seq} ${part}`;
    const known = this.#parts.get(key);
    if (known !== undefined) return known;
    const { stored, budget } = this.#deps;
    budget.takeRows(1);
    const text = stored.read(head, part);
    budget.takeParsed(text.length);
    const parsed = JSON.parse(text) as JsonObject & readonly KeptItem[];
    // It was written when the response was kept.
    const items = part === "body" ? (parsed.output as readonly KeptItem[]) : parsed;
    this.#parts.set(key, items);
    await yieldToOthers();
    return items;
  }

  /** Counts items that become part of the conversation, each time that they do. */
  #taken(items: readonly Item[], param: string): readonly Item[] {
    for (const item of items) {
      const bytes = this.#bytesOf.get(item) ?? JSON.stringify(item).length;
      this.#bytesOf.set(item, bytes);
      this.#bytes += bytes;
    }
    this.#count += items.length;
    if (this.#count > limits.messages) throw tooLong(`${limits.messages} items`, param);
    if (this.#bytes > limits.bodyBytes) throw tooLong(`${limits.bodyBytes} bytes`, param);
    return items;
  }
}

const tooLong = (bound: string, param: string): ApiError =>
  new ApiError("invalid_value", { message: `'${param}' makes the conversation longer than ${bound}.`, param });

const broken = (param: string): ApiError =>
  new ApiError("not_found", { message: "An earlier response of the conversation was deleted.", param });

/** Runs `find`; errors that it throws name the request's field. */
function naming<Value>(param: string, find: () => Value): Value {
  try {
    return find();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    throw new ApiError(error.code, { message: error.message, param, cause: error });
  }
}

const inputPrefixes: Readonly<Record<Item["type"], string>> = {
  message: "msg",
  file_search_call: "fs",
  reasoning: "rs",
  // Calls in an answer have the usual prefix `fc`; these are calls in the input.
  function_call: "fci",
  function_call_output: "fco",
};

/** A response's own input as it is kept, JSON: with ids by which it can be referred to. */
export function keptInput(id: ResponseId, items: readonly KeptItem[]): string {
  const own = id.replace("resp_", "");
  return JSON.stringify(
    items.map((item, index) =>
      item.type === "item_reference" ? item : { id: `${inputPrefixes[item.type]}_${own}_${index}`, ...item },
    ),
  );
}
