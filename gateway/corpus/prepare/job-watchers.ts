/**
 * Tells followers about the progress of jobs. An event is the whole present state of a job. A follower that comes late,
 * or returns, misses nothing by getting the present state first, so no events have to be stored for replay.
 */
import type { CorpusId, TenantId } from "../../../db/ids.ts";
import type { JobRow } from "../../../db/jobs.ts";

export interface JobOwner {
  readonly tenantId: TenantId;
  readonly corpusId: CorpusId;
}

export class JobWatchers {
  readonly #watches = new Set<Watch>();

  publish(job: JobRow): void {
    for (const watch of this.#watches) if (watch.job.id === job.id) watch.push(job);
  }

  /** Ends the following of jobs that are gone. */
  end(concerns: (job: JobOwner) => boolean): void {
    for (const watch of this.#watches) if (concerns(watch.job)) watch.end();
  }

  /**
   * Yields the job's state now and after every change, until the job has ended or `signal` aborts. A slow reader skips
   * states, so states never pile up.
   */
  async *follow(job: JobRow, signal: AbortSignal): AsyncGenerator<JobRow> {
    const watch = new Watch(job);
    const end = () => watch.end();
    this.#watches.add(watch);
    signal.addEventListener("abort", end, { once: true });
    try {
      for (;;) {
        const state = await watch.next();
        if (state === undefined || signal.aborted) return;
        yield state;
        if (state.finishedAt !== null) return;
      }
    } finally {
      signal.removeEventListener("abort", end);
      this.#watches.delete(watch);
    }
  }
}

class Watch {
  readonly job: JobRow;
  #latest: JobRow | undefined;
  #ended = false;
  #notify: (() => void) | undefined;

  constructor(job: JobRow) {
    this.job = job;
    this.#latest = job;
  }

  push(job: JobRow): void {
    this.#latest = job;
    this.#notify?.();
  }

  end(): void {
    this.#ended = true;
    this.#notify?.();
  }

  /** Waits for the newest state that was not read yet; undefined once the job has ended. */
  async next(): Promise<JobRow | undefined> {
    while (this.#latest === undefined && !this.#ended) {
      await new Promise<void>((resolve) => {
        this.#notify = resolve;
      });
    }
    const state = this.#latest;
    this.#latest = undefined;
    return state;
  }
}
