/**
 * Searches run in threads, each with a connection of its own that only reads: a statement of a search cannot be cut, and
 * over fragments that are full of the question's words it takes seconds. Tenants take turns, and none has all threads.
 */

import { DbError } from "../../../db/errors.ts";
import type { TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import { programPath } from "../../../places/places.ts";
import { ApiError } from "../../base/errors.ts";
import { TaskTimeout, ThreadPool, type ThreadPoolOptions } from "../../threads/pool.ts";
import { corpusLimits } from "../base/limits.ts";
import type { Rankings, RankSearch, searchTasks } from "./rank.ts";

const options: ThreadPoolOptions = {
  program: programPath("search-thread"),
  maxThreads: 2,
  waitingPerTenant: 256,
  waiting: 8_192,
  maxHeapBytes: 64 * 2 ** 20,
  idleMs: 30_000,
};

/** Most searches take less than a new thread does. */
const forNobodyMs = 250;

export class Searches {
  readonly #path: string;
  readonly #maxMs: number;
  readonly #threads = new ThreadPool<ReturnType<typeof searchTasks>>(options);

  /** @param db a database in a file, whose log is emptied while no search reads it */
  constructor(db: Db, maxMs: number = corpusLimits.maxSearchMs) {
    this.#path = db.client.filename;
    this.#maxMs = maxMs;
    db.pauseReaders = (mostMs) => this.#threads.pause(mostMs);
  }

  /**
   * @param signal of who waits for it: a search for nobody does not begin, and one that runs is ended
   * @throws ApiError deadline_exceeded; concurrency_limited and overloaded when too many searches wait; the signal's reason
   */
  async rank(tenantId: TenantId, search: RankSearch, signal?: AbortSignal): Promise<Rankings> {
    const times = { maxMs: this.#maxMs, maxWaitMs: corpusLimits.maxSearchWaitMs, goesOnMs: forNobodyMs };
    const run = { tenantId, ...times, signal };
    try {
      const answer = await this.#threads.run("rank", { path: this.#path, ...search }, run);
      if ("failed" in answer) throw new DbError(answer.failed, answer.statement, "a search failed");
      return answer;
    } catch (error) {
      if (!(error instanceof TaskTimeout)) throw error;
      const message = `The search took longer than ${this.#maxMs / 1_000} s, or waited too long behind others. Search by fewer words, or in fewer vector stores.`;
      throw new ApiError("deadline_exceeded", { message, cause: error });
    }
  }

  stop(): Promise<void> {
    return this.#threads.stop();
  }
}
