/** A bucket in memory behind the mover's interface, over a folder's real files. It can fail in any way. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { MoverPort } from "../../gateway/mover/mover.ts";
import { type ListedPage, MoverError, type MoverJob } from "../../gateway/mover/protocol.ts";

export class FakeMover implements MoverPort {
  readonly objects = new Map<string, Uint8Array>();
  /** Every job that was given, in order. */
  readonly jobs: string[] = [];
  /** Why a job fails; a promise: when it goes on. */
  fault: (job: MoverJob) => MoverError | Promise<void> | undefined = () => undefined;
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async do(job: MoverJob): Promise<ListedPage | undefined> {
    this.jobs.push(job.is === "list" ? "list" : `${job.is} ${job.id}`);
    const fault = this.fault(job);
    if (fault instanceof MoverError) throw fault;
    await fault;
    switch (job.is) {
      case "put":
        return this.#put(job.id);
      case "get":
        return this.#get(job.id);
      case "delete":
        this.objects.delete(job.id);
        return undefined;
      case "list":
        return this.#page(Number(job.after ?? 0));
    }
  }

  stop(): void {
    this.jobs.push("stop");
  }

  #put(id: string): undefined {
    try {
      this.objects.set(id, readFileSync(join(this.#folder, id)));
    } catch {
      throw new MoverError("file", "ENOENT");
    }
  }

  #get(id: string): undefined {
    const bytes = this.objects.get(id);
    if (bytes === undefined) throw new MoverError("missing", "it is not in the bucket");
    writeFileSync(join(this.#folder, id), bytes);
  }

  /** Three at once. */
  #page(from: number): ListedPage {
    const ids = [...this.objects.keys()].sort();
    return { ids: ids.slice(from, from + 3), next: from + 3 < ids.length ? `${from + 3}` : undefined };
  }
}
