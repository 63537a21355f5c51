/** Opens the server's pool of threads. */
import { programPath } from "../../places/places.ts";
import { ThreadPool, type ThreadPoolOptions } from "../threads/pool.ts";
import type { Tasks } from "./compile-tasks.ts";

export type Threads = ThreadPool<Tasks>;

const options: ThreadPoolOptions = {
  program: programPath("compile-thread"),
  maxThreads: 2,
  waitingPerTenant: 256,
  waiting: 8_192,
  maxHeapBytes: 64 * 2 ** 20,
  idleMs: 30_000,
};

export const openThreads = (): Threads => new ThreadPool<Tasks>(options);
