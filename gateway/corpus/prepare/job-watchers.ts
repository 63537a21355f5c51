/**
 * Who follows jobs. An event is the whole job as it is, so whoever comes late, or comes again, misses nothing
 * by seeing the present state first; nothing has to be kept for replay.
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

  /** These jobs are gone: whoever follows them has seen the last of them. */
  end(concerns: (job: JobOwner) => boolean): void {
    for (const watch of this.#watches) if (concerns(watch.job)) watch.end();
  }

  /**
   * The job now, then after every change, until it has ended or `signal` aborts. A slow reader skips states
   * in between and never makes them pile up.
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

  /** The newest state not seen yet; undefined once ended. */
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
