/** The conversation that a response answers: earlier ones', those that the request refers to by id, its own. */
import type { JsonObject } from "../../db/schema.ts";
import { ApiError } from "../errors.ts";
import type { StoredResponses } from "../stored-responses.ts";
import type { Item, ItemReference, ResponsePrompt } from "./responses-schema.ts";

/** @throws ApiError not_found for another tenant's response as for one that never was */
export function conversationOf(stored: StoredResponses, tenantId: string, parsed: ResponsePrompt): readonly Item[] {
  const own = parsed.items.map((item, index) =>
    item.type === "item_reference" ? referredItem(stored, tenantId, item, index) : item,
  );
  return [...earlierItems(stored, tenantId, parsed), ...own];
}

/** What was said before: the earlier response's own conversation, and its answer. */
function earlierItems(stored: StoredResponses, tenantId: string, { body }: ResponsePrompt): readonly Item[] {
  if (body.previous_response_id === undefined) return [];
  try {
    return itemsOf(stored, tenantId, body.previous_response_id);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    throw new ApiError(error.code, { message: error.message, param: "previous_response_id", cause: error });
  }
}

/** An item's id is its response's under another prefix; a number at its end tells those of the input apart. */
const itemId = /^[a-z]+_([a-z0-9]+)(?:_\d+)?$/;

/** Clients send back what they have stored by id alone. */
function referredItem(stored: StoredResponses, tenantId: string, { id }: ItemReference, index: number): Item {
  const unknown = (cause?: unknown): ApiError => new ApiError("not_found", { param: `input[${index}].id`, cause });
  const [, own] = itemId.exec(id) ?? [];
  if (own === undefined) throw unknown();
  try {
    const item = itemsOf(stored, tenantId, `resp_${own}`).find((each) => (each as { id?: string }).id === id);
    if (item !== undefined) return item;
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "not_found") throw error;
    throw unknown(error);
  }
  throw unknown();
}

function itemsOf(stored: StoredResponses, tenantId: string, responseId: string): readonly Item[] {
  const { body, inputItems } = stored.get(tenantId, responseId);
  // Both were written when the response was kept.
  return [...inputItems, ...(body.output as JsonObject[])] as unknown as readonly Item[];
}
