/**
 * A few threads for heavy work, so that the event loop does none of it: what the tasks are, the program says that the
 * threads run. Tenants are served in rounds. Where there are several threads, no tenant has all of them at once; with
 * one thread, the time limit bounds how long other tenants wait. A thread that exceeds a task's time limit, or whose
 * heap grew too large, is replaced.
 */
import { ApiError } from "../base/errors.ts";
import { type Hold, holdUntil, onAbort } from "../base/hold.ts";
import { RoundRobinQueue } from "../base/round-robin-queue.ts";
import type { InputOf, OutputOf, TaskTable } from "./protocol.ts";
import { Thread } from "./thread.ts";

export interface ThreadPoolOptions {
  /** Path of the program that a thread runs: it serves the tasks. */
  readonly program: string;
  /** Threads are started when there is work for them. */
  readonly maxThreads: number;
  /** The most waiting tasks of one tenant, and of all tenants. */
  readonly waitingPerTenant: number;
  readonly waiting: number;
  /** A thread with a larger heap after a task is replaced. */
  readonly maxHeapBytes: number;
  /** A thread that was idle for this many milliseconds is ended, except for one. */
  readonly idleMs: number;
}

export interface TaskRun {
  /** The tenant for whom the task runs. */
  readonly tenantId: string;
  /** The most milliseconds that the task may take, from when a thread begins it. */
  readonly maxMs: number;
  /** The most milliseconds that it waits for a thread; absent: as long as it takes. */
  readonly maxWaitMs?: number;
  readonly signal?: AbortSignal | undefined;
  /**
   * Milliseconds that a task whose signal was aborted goes on for nobody before its thread is ended; default 0. Ending
   * takes the thread of what would have been over soon, and the next task waits for a new one.
   */
  readonly goesOnMs?: number;
}

/** A task took longer than it may. */
export class TaskTimeout extends Error {}

interface Task extends TaskRun {
  readonly name: string;
  readonly input: unknown;
  readonly resolve: (output: unknown) => void;
  readonly reject: (reason: unknown) => void;
}

export class ThreadPool<Table extends TaskTable> {
  readonly #options: ThreadPoolOptions;
  readonly #waiting = new RoundRobinQueue<Task>();
  readonly #idle: { readonly thread: Thread; readonly timer: ReturnType<typeof setTimeout> }[] = [];
  /** Threads at work, by the task that they run. */
  readonly #running = new Map<Task, Thread>();
  readonly #runningOf = new Map<string, number>();
  /** Called when no thread works any more, by those who let none begin. */
  readonly #pauses = new Set<() => void>();
  #isStopped = false;

  constructor(options: ThreadPoolOptions) {
    this.#options = options;
  }

  /** The number of threads, busy or idle. */
  get threadCount(): number {
    return this.#idle.length + this.#running.size;
  }

  /**
   * @throws TaskTimeout; ApiError concurrency_limited and overloaded when too many tasks wait, server_shutdown; the
   *   signal's reason when it is aborted; Error when the task or its thread failed
   */
  async run<Name extends keyof Table & string>(
    name: Name,
    input: InputOf<Table, Name>,
    run: TaskRun,
  ): Promise<OutputOf<Table, Name>> {
    run.signal?.throwIfAborted();
    if (this.#isStopped) throw new ApiError("server_shutdown");
    const { waitingPerTenant, waiting } = this.#options;
    if (this.#waiting.sizeOf(run.tenantId) >= waitingPerTenant) throw new ApiError("concurrency_limited");
    if (this.#waiting.size >= waiting) throw new ApiError("overloaded");
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    const task: Task = { ...run, name, input, resolve, reject };
    using _listener = onAbort(run.signal, () => this.#abort(task));
    this.#waiting.push(run.tenantId, task);
    this.#startWaiting();
    const timer = run.maxWaitMs === undefined ? undefined : setTimeout(() => this.#refuse(task), run.maxWaitMs);
    try {
      return (await promise) as OutputOf<Table, Name>;
    } finally {
      clearTimeout(timer);
    }
  }

  /**
   * Resolves when no task runs any more. None begins until the hold ends; those that come meanwhile wait.
   * @param mostMs undefined is answered when tasks still run after this time, and others begin again
   */
  async pause(mostMs = Number.POSITIVE_INFINITY): Promise<Hold | undefined> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    const pause = (): void => resolve(true);
    const end = (): void => {
      this.#pauses.delete(pause);
      this.#startWaiting();
    };
    this.#pauses.add(pause);
    if (this.#running.size === 0) pause();
    const timer = Number.isFinite(mostMs) ? setTimeout(() => resolve(false), mostMs) : undefined;
    const isIdle = await promise;
    clearTimeout(timer);
    if (isIdle) return holdUntil(end);
    end();
    return undefined;
  }

  /** Ends all threads. Tasks that wait or run are refused. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    const refused = new ApiError("server_shutdown");
    for (const task of [...this.#waiting.drain(), ...this.#running.keys()]) task.reject(refused);
    const idle = this.#idle.splice(0).map(({ thread, timer }) => {
      clearTimeout(timer);
      return thread;
    });
    await Promise.all([...idle, ...this.#running.values()].map((thread) => thread.end()));
  }

  #startWaiting(): void {
    const { maxThreads } = this.#options;
    const mayHave = (tenantId: string): boolean => (this.#runningOf.get(tenantId) ?? 0) < Math.max(1, maxThreads - 1);
    while (!this.#isStopped && this.#pauses.size === 0 && this.#running.size < maxThreads) {
      const task = this.#waiting.take(mayHave);
      if (task === undefined) return;
      void this.#runIn(this.#takeThread(), task);
    }
  }

  async #runIn(thread: Thread, task: Task): Promise<void> {
    const { name, input, tenantId, maxMs } = task;
    this.#running.set(task, thread);
    this.#runningOf.set(tenantId, (this.#runningOf.get(tenantId) ?? 0) + 1);
    const timer = setTimeout(() => {
      task.reject(new TaskTimeout(`the task '${name}' took longer than ${maxMs} ms`));
      void thread.end();
    }, maxMs);
    let heapBytes = 0;
    try {
      const answer = await thread.run({ name, input });
      heapBytes = answer.heapBytes;
      if (answer.failure === undefined) task.resolve(answer.output);
      else task.reject(new Error(`the task '${name}' failed: ${answer.failure}`));
    } catch (error) {
      task.reject(error);
    }
    clearTimeout(timer);
    if (heapBytes > this.#options.maxHeapBytes && !thread.isLost) await thread.end();
    this.#leave(task);
    if (!thread.isLost && !this.#isStopped) this.#rest(thread);
    this.#startWaiting();
  }

  #leave(task: Task): void {
    this.#running.delete(task);
    const left = (this.#runningOf.get(task.tenantId) ?? 0) - 1;
    if (left > 0) this.#runningOf.set(task.tenantId, left);
    else this.#runningOf.delete(task.tenantId);
    if (this.#running.size === 0) for (const paused of this.#pauses) paused();
  }

  /** No thread took it in time. */
  #refuse(task: Task): void {
    if (!this.#waiting.remove(task.tenantId, task)) return;
    task.reject(new TaskTimeout(`the task '${task.name}' waited longer than ${task.maxWaitMs} ms`));
  }

  #abort(task: Task): void {
    task.reject(task.signal?.reason);
    if (this.#waiting.remove(task.tenantId, task)) return;
    const end = (): void => void this.#running.get(task)?.end();
    if (task.goesOnMs === undefined) end();
    else setTimeout(end, task.goesOnMs).unref();
  }

  #rest(thread: Thread): void {
    const timer = setTimeout(() => {
      if (this.threadCount <= 1) return;
      this.#idle.splice(
        this.#idle.findIndex((idle) => idle.thread === thread),
        1,
      );
      void thread.end();
    }, this.#options.idleMs);
    timer.unref();
    this.#idle.push({ thread, timer });
  }

  /** Takes the idle thread that worked last, so that the others reach their idle limit and end. */
  #takeThread(): Thread {
    for (let idle = this.#idle.pop(); idle !== undefined; idle = this.#idle.pop()) {
      clearTimeout(idle.timer);
      if (!idle.thread.isLost) return idle.thread;
    }
    return new Thread(this.#options.program);
  }
}
