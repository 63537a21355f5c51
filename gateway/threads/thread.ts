/** One Bun worker thread, with a heap of its own. It runs one task at a time. */
import type { TaskAnswer, TaskMessage } from "./protocol.ts";

export class Thread {
  readonly #worker: Worker;
  readonly #closed: Promise<void>;
  #onAnswer: ((answer: TaskAnswer) => void) | undefined;
  #onLost: ((reason: Error) => void) | undefined;
  /** The thread has ended or is about to end: it can run nothing more. */
  isLost = false;

  /** @param program path of the program that the thread runs */
  constructor(program: string) {
    // A small heap is collected more often; an idle thread does not keep the process alive.
    const options: WorkerOptions = { smol: true, ref: false };
    this.#worker = new Worker(program, options);
    this.#closed = new Promise((resolve) => this.#worker.addEventListener("close", () => resolve(), { once: true }));
    this.#closed.then(() => this.#lose(new Error("the thread ended")));
    this.#worker.onerror = (event) => {
      event.preventDefault();
      this.#lose(new Error(event.message));
    };
    this.#worker.onmessage = ({ data }: MessageEvent<TaskAnswer>) => this.#onAnswer?.(data);
  }

  /** @throws Error when the thread is lost before it has answered, DataCloneError for an input that cannot be copied */
  async run(task: TaskMessage): Promise<TaskAnswer> {
    const { promise, resolve, reject } = Promise.withResolvers<TaskAnswer>();
    [this.#onAnswer, this.#onLost] = [resolve, reject];
    this.#worker.ref();
    try {
      this.#worker.postMessage(task);
      return await promise;
    } finally {
      this.#worker.unref();
      [this.#onAnswer, this.#onLost] = [undefined, undefined];
    }
  }

  /** Stops the thread even while it works; its memory is freed. Resolves when the thread is gone. */
  async end(): Promise<void> {
    this.isLost = true;
    this.#worker.terminate();
    await this.#closed;
  }

  #lose(reason: Error): void {
    this.isLost = true;
    this.#onLost?.(reason);
  }
}
