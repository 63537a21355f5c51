/** Files on their way into a corpus: a few at a time, each with what became of it. */
import { signal } from "@preact/signals";
import { call, isAbort, messageOf } from "../kit/api.ts";

export type UploadState = "waiting" | "sending" | "added" | "failed";

export interface Upload {
  readonly key: number;
  readonly file: File;
  /** With its folders. */
  readonly path: string;
  readonly state: UploadState;
  readonly reason?: string;
}

const atOnce = 3;
/** A folder with more files belongs to the command line, which can go on where it was cut off. */
export const mostFiles = 10_000;

export class Uploads {
  readonly list = signal<readonly Upload[]>([]);
  readonly #corpusId: string;
  readonly #onAdded: () => void;
  readonly #leaving = new AbortController();
  #nextKey = 0;
  #running = 0;

  constructor(corpusId: string, onAdded: () => void) {
    this.#corpusId = corpusId;
    this.#onAdded = onAdded;
  }

  /** @returns how many were left out, since they are too many */
  add(files: readonly { readonly file: File; readonly path: string }[]): number {
    const room = Math.max(0, mostFiles - this.list.value.length);
    const taken = files.slice(0, room).map(({ file, path }): Upload => {
      this.#nextKey += 1;
      return { key: this.#nextKey, file, path, state: "waiting" };
    });
    this.list.value = [...this.list.value, ...taken];
    this.#go();
    return files.length - taken.length;
  }

  retry(key: number): void {
    this.#change(key, { state: "waiting" });
    this.#go();
  }

  /** Takes what is done off the list. */
  clear(): void {
    this.list.value = this.list.value.filter(({ state }) => state !== "added");
  }

  leave(): void {
    this.#leaving.abort();
  }

  #go(): void {
    while (this.#running < atOnce) {
      const next = this.list.value.find(({ state }) => state === "waiting");
      if (next === undefined) return;
      this.#running += 1;
      this.#change(next.key, { state: "sending" });
      void this.#send(next);
    }
  }

  async #send({ key, file, path }: Upload): Promise<void> {
    const { signal: leaving } = this.#leaving;
    try {
      const form = new FormData();
      form.set("purpose", "assistants");
      form.set("file", file, path);
      const { id } = await call<{ id: string }>("POST", "/v1/files", { body: form, signal: leaving });
      const attach = { body: { file_id: id }, signal: leaving };
      await call("POST", `/v1/vector_stores/${this.#corpusId}/files`, attach);
      this.#change(key, { state: "added" });
      this.#onAdded();
    } catch (error) {
      if (isAbort(error)) return;
      this.#change(key, { state: "failed", reason: messageOf(error) });
    }
    this.#running -= 1;
    this.#go();
  }

  #change(key: number, to: Pick<Upload, "state" | "reason">): void {
    this.list.value = this.list.value.map((upload) => (upload.key === key ? { ...upload, ...to } : upload));
  }
}
