/**
 * Makes vectors of texts. The texts are tokenized here; the embedder process computes the vectors and is restarted when
 * it is lost.
 */
import { programPath } from "../../places/places.ts";
import type { EmbedderCard, EmbedderMessage, EmbedMessage } from "../../worker/contract/embedding.ts";
import { ApiError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { type Config, limits } from "../config.ts";
import { embedderEnvironment } from "../process/child-environment.ts";
import type { TextTokenizer } from "../text/tokenizer.ts";
import { type EmbeddingRole, type EmbeddingText, plainEmbeddingText, readEmbeddingText } from "./embedding-text.ts";

/** Sequences in one message to the process. They are few, so that other requests' sequences need not wait long. */
const sequencesPerMessage = 32;

export interface EmbeddingDeps {
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly text: EmbeddingText;
  /** Milliseconds that the process may take for one message. */
  readonly messageMs: number;
  /** The most sequences that may wait. */
  readonly maxWaiting: number;
  readonly log: Log;
}

/** The embedding model cannot be opened; the message is for the operator. */
export class EmbedderError extends Error {}

interface Waiting {
  readonly settle: (vectors: readonly Float32Array[] | ApiError) => void;
  readonly timer: ReturnType<typeof setTimeout>;
}

type Process = Bun.Subprocess<"ignore", 2, 2>;

interface Opened {
  readonly child: Process;
  readonly card: EmbedderCard;
}

export class EmbeddingService {
  readonly #deps: EmbeddingDeps;
  readonly #waiting = new Map<number, Waiting>();
  /** The process, from its start on; undefined before the first use and after the process was lost. */
  #opening: Promise<Opened> | undefined;
  #child: Process | undefined;
  #lastId = 0;
  #waitingCount = 0;
  #stopped = false;

  /** The constructor starts no process; the first use does. */
  constructor(deps: EmbeddingDeps) {
    this.#deps = deps;
  }

  /** Kills the process. The next use starts it again. */
  kill(): void {
    this.#child?.kill("SIGKILL");
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.kill();
    await this.#child?.exited;
  }

  /** Opens the model if it is not open yet. @throws EmbedderError when it cannot be opened, ApiError server_shutdown */
  async card(): Promise<EmbedderCard> {
    return (await this.#open()).card;
  }

  /**
   * The tokens of a text as the model reads it. Long texts are encoded in slices, between which other work runs. When
   * `maxTokens` is given, the end of a longer text is left out.
   */
  encode(text: string, role: EmbeddingRole = "plain", maxTokens?: number): Promise<Int32Array> {
    return this.#deps.text.encode(text, role, maxTokens);
  }

  /**
   * Makes vectors of texts of any length. The end of a text that is too long for the model is left out.
   * @throws as embedTokens
   */
  async embed(
    texts: readonly string[],
    role: EmbeddingRole,
    onTokens?: (count: number) => void,
  ): Promise<readonly Float32Array[]> {
    const { maxTokens } = await this.card();
    const sequences: Int32Array[] = [];
    for (const text of texts) sequences.push(await this.#deps.text.encode(text, role, maxTokens));
    onTokens?.(sequences.reduce((sum, sequence) => sum + sequence.length, 0));
    return await this.embedTokens(sequences);
  }

  /** @throws ApiError overloaded, worker_lost, deadline_exceeded, and as `card` */
  async embedTokens(sequences: readonly Int32Array[], signal?: AbortSignal): Promise<readonly Float32Array[]> {
    if (this.#waitingCount + sequences.length > this.#deps.maxWaiting) throw new ApiError("overloaded");
    this.#waitingCount += sequences.length;
    const vectors: Float32Array[] = [];
    try {
      for (let at = 0; at < sequences.length; at += sequencesPerMessage) {
        const { child } = await this.#open();
        signal?.throwIfAborted();
        vectors.push(...(await this.#embedInProcess(child, sequences.slice(at, at + sequencesPerMessage))));
      }
    } finally {
      this.#waitingCount -= sequences.length;
    }
    return vectors;
  }

  async #open(): Promise<Opened> {
    if (this.#stopped) throw new ApiError("server_shutdown");
    this.#opening ??= this.#spawn();
    return await this.#opening;
  }

  #spawn(): Promise<Opened> {
    const { promise, resolve, reject } = Promise.withResolvers<Opened>();
    const child: Process = Bun.spawn([...this.#deps.argv], {
      env: this.#deps.env,
      stdio: ["ignore", 2, 2],
      serialization: "advanced",
      ipc: (message: EmbedderMessage) => {
        if (message.type === "ready") resolve({ child, card: message.card });
        else if (message.type === "fatal") reject(new EmbedderError(message.reason));
        else this.#settle(message.id, message.type === "vectors" ? message.vectors : new ApiError("internal"));
      },
      onExit: () => {
        this.#opening = undefined;
        reject(new ApiError(this.#stopped ? "server_shutdown" : "worker_lost"));
        for (const id of [...this.#waiting.keys()]) this.#settle(id, new ApiError("worker_lost"));
        if (!this.#stopped) this.#deps.log("error", "the embedder has ended; the next text starts it again");
      },
    });
    this.#child = child;
    return promise;
  }

  #embedInProcess(child: Process, sequences: readonly Int32Array[]): Promise<readonly Float32Array[]> {
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#settle(id, new ApiError("deadline_exceeded"));
        this.kill();
      }, this.#deps.messageMs);
      const settle: Waiting["settle"] = (found) => (found instanceof ApiError ? reject(found) : resolve(found));
      this.#waiting.set(id, { settle, timer });
      try {
        child.send({ type: "embed", id, sequences } satisfies EmbedMessage);
      } catch {
        this.#settle(id, new ApiError("worker_lost"));
      }
    });
  }

  #settle(id: number, found: readonly Float32Array[] | ApiError): void {
    const waiting = this.#waiting.get(id);
    if (waiting === undefined) return;
    clearTimeout(waiting.timer);
    this.#waiting.delete(id);
    waiting.settle(found);
  }
}

/** Makes the service for a configuration. @throws Error naming a file of the embedding model's folder */
export function openEmbedding(
  config: Config,
  env: Readonly<Record<string, string | undefined>>,
  tokenizer: TextTokenizer,
  log: Log,
): EmbeddingService {
  const { embeddingModelDir: folder } = config;
  return new EmbeddingService({
    argv: [process.execPath, programPath("embedder")],
    env: embedderEnvironment(config, env),
    text: folder === undefined ? plainEmbeddingText(tokenizer) : readEmbeddingText(folder),
    messageMs: limits.embedMs,
    maxWaiting: limits.embeddingQueue,
    log,
  });
}
