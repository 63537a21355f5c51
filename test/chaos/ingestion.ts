/** Clients that upload, attach and delete without end, and what the server acknowledged to them until it was killed. */
import type { HttpClient } from "../../gateway/cli/support/client.ts";

/** What was acknowledged, over all lives of a server. */
export class Acknowledged {
  /** Number of each uploaded file's document. */
  readonly uploaded = new Map<string, number>();
  readonly attached = new Set<string>();
  /** Asked for: it may or may not have happened. */
  readonly maybeDeleted = new Set<string>();
  readonly deleted = new Set<string>();
  #next = 0;

  nextNumber(): number {
    this.#next += 1;
    return this.#next;
  }

  /** Uploads that nobody asked to delete. */
  live(): readonly string[] {
    return [...this.uploaded.keys()].filter((id) => !this.maybeDeleted.has(id));
  }
}

export interface TestDocument {
  readonly name: string;
  readonly type: string;
  readonly content: string;
  /** What a reader of the ingested file has to find, and whether that is all. */
  readonly text: string;
}

/** So many that they are ingested among the large ones. */
const linesOfLong = 10_500;

/** No two alike; every fifth is HTML, which is read in a process of its own, and some are long. */
export function documentOf(number: number): TestDocument {
  const lineCount = number % 50 === 3 ? linesOfLong : 1 + ((number * 37) % 120);
  const lines = Array.from({ length: lineCount }, (_, line) => `Document ${number} says word ${line}.`);
  const text = lines.join(" ");
  if (number % 5 !== 0) return { name: `${number}.txt`, type: "text/plain", content: text, text };
  const content = `<!doctype html><html><body>${lines.map((line) => `<p>${line}</p>`).join("")}</body></html>`;
  return { name: `${number}.html`, type: "text/html", content, text };
}

const chunkingStrategy = { type: "static", static: { max_chunk_size_tokens: 24, chunk_overlap_tokens: 0 } };

/** Goes on until the server is gone. */
export async function ingest(client: HttpClient, storeId: string, heard: Acknowledged): Promise<void> {
  for (;;) {
    const number = heard.nextNumber();
    const { name, type, content } = documentOf(number);
    const form = new FormData();
    form.set("purpose", "assistants");
    form.set("file", new File([content], name, { type }));
    const { id } = await client.upload<{ id: string }>("/v1/files", form);
    heard.uploaded.set(id, number);
    const attachment = { file_id: id, chunking_strategy: chunkingStrategy };
    await client.json("POST", `/v1/vector_stores/${storeId}/files`, attachment);
    heard.attached.add(id);
    if (number % 4 === 0) await remove(client, heard);
  }
}

/** Deletes one that is there, of the oldest. */
async function remove(client: HttpClient, heard: Acknowledged): Promise<void> {
  const [doomed] = heard.live();
  if (doomed === undefined) return;
  heard.maybeDeleted.add(doomed);
  await client.json("DELETE", `/v1/files/${doomed}`);
  heard.deleted.add(doomed);
}
