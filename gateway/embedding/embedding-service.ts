/**
 * Makes vectors of texts, and scores of texts for a question. The texts are tokenized here; the embedder process
 * computes vectors and scores, and is restarted when it is lost.
 */
import { programPath } from "../../places/places.ts";
import type {
  EmbedderCard,
  EmbedderMessage,
  EmbedMessage,
  RerankerCard,
  ScoreMessage,
  TokenPair,
} from "../../worker/contract/embedding.ts";
import { ApiError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { type Config, limits } from "../config.ts";
import { embedderEnvironment } from "../process/child-environment.ts";
import type { TextTokenizer } from "../text/tokenizer.ts";
import { type EmbeddingRole, type EmbeddingText, plainEmbeddingText, readEmbeddingText } from "./embedding-text.ts";
import { PairText } from "./pair-text.ts";

/** Sequences in one message to the process. They are few, so that other requests' sequences need not wait long. */
const sequencesPerMessage = 32;
/** Pairs in one message: a cross-encoder reads more tokens of each, and has more layers. */
const pairsPerMessage = 8;
/** Messages that the process has: one that it works on, and the next. Others wait here, where no time runs for them. */
const messagesInProcess = 2;

export interface EmbeddingDeps {
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly text: EmbeddingText;
  /** Absent: there is no cross-encoder. */
  readonly pairs?: PairText | undefined;
  /** Milliseconds that the process may take for one message. */
  readonly messageMs: number;
  /** The most sequences that may wait. */
  readonly maxWaiting: number;
  readonly log: Log;
}

/** The embedding model cannot be opened; the message is for the operator. */
export class EmbedderError extends Error {}

interface Waiting {
  readonly settle: (answer: EmbedderMessage | ApiError) => void;
  readonly timer: ReturnType<typeof setTimeout>;
}

type Process = Bun.Subprocess<"ignore", 2, 2>;

interface Opened {
  readonly child: Process;
  readonly card: EmbedderCard;
  readonly reranker: RerankerCard | undefined;
}

export class EmbeddingService {
  readonly #deps: EmbeddingDeps;
  readonly #waiting = new Map<number, Waiting>();
  /** The process, from its start on; undefined before the first use and after the process was lost. */
  #opening: Promise<Opened> | undefined;
  #child: Process | undefined;
  #lastId = 0;
  /** Messages that the process has, and those that wait for one of these places, in order. */
  #sentCount = 0;
  readonly #turns: (() => void)[] = [];
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

  /** The card of the cross-encoder; undefined: there is none. @throws as `card` */
  async rerankerCard(): Promise<RerankerCard | undefined> {
    return this.#deps.pairs === undefined ? undefined : (await this.#open()).reranker;
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
    return await this.#inMessages(sequences, sequencesPerMessage, signal, async (id, some) => {
      const answer = await this.#ask({ type: "embed", id, sequences: some });
      return answer.type === "vectors" ? answer.vectors : [];
    });
  }

  /**
   * The pairs of a question and of each text, as the cross-encoder reads them; undefined: there is none.
   * @param onPair called with the tokens of each pair; what it throws ends the encoding
   * @throws as `card`
   */
  async encodePairs(
    query: string,
    texts: readonly string[],
    onPair?: (tokens: number) => void,
  ): Promise<readonly TokenPair[] | undefined> {
    const card = await this.rerankerCard();
    return card && (await this.#deps.pairs?.encode(query, texts, card.maxTokens, onPair));
  }

  /** How well each pair's text answers its question, in 0..1. @throws as `embedTokens` */
  async scorePairs(pairs: readonly TokenPair[], signal?: AbortSignal): Promise<readonly number[]> {
    const logits = await this.#inMessages(pairs, pairsPerMessage, signal, async (id, some) => {
      const answer = await this.#ask({ type: "score", id, pairs: some });
      return answer.type === "scores" ? answer.scores : [];
    });
    return logits.map((logit) => 1 / (1 + Math.exp(-logit)));
  }

  /**
   * How well each text answers the question, in 0..1. The end of a pair that is too long for the model is left out.
   * @throws as `embedTokens`
   */
  async rerank(
    query: string,
    texts: readonly string[],
    onTokens?: (count: number) => void,
  ): Promise<readonly number[]> {
    const pairs = await this.encodePairs(query, texts);
    if (pairs === undefined) throw new ApiError("internal", { cause: new Error("there is no cross-encoder") });
    onTokens?.(pairs.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0));
    return await this.scorePairs(pairs);
  }

  /** Sends the items, a few in each message, so that other requests' messages go between. */
  async #inMessages<Item, Result>(
    items: readonly Item[],
    perMessage: number,
    signal: AbortSignal | undefined,
    ask: (id: number, some: readonly Item[]) => Promise<readonly Result[]>,
  ): Promise<readonly Result[]> {
    if (this.#waitingCount + items.length > this.#deps.maxWaiting) throw new ApiError("overloaded");
    this.#waitingCount += items.length;
    const results: Result[] = [];
    try {
      for (let at = 0; at < items.length; at += perMessage) {
        signal?.throwIfAborted();
        results.push(...(await ask(++this.#lastId, items.slice(at, at + perMessage))));
      }
    } finally {
      this.#waitingCount -= items.length;
    }
    return results;
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
        if (message.type === "ready") resolve({ child, card: message.card, reranker: message.reranker });
        else if (message.type === "fatal") reject(new EmbedderError(message.reason));
        else this.#settle(message.id, message.type === "failed" ? new ApiError("internal") : message);
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

  async #ask(message: EmbedMessage | ScoreMessage): Promise<EmbedderMessage> {
    if (this.#sentCount < messagesInProcess) this.#sentCount += 1;
    else await new Promise<void>((resolve) => void this.#turns.push(resolve));
    try {
      return await this.#send((await this.#open()).child, message);
    } finally {
      const next = this.#turns.shift();
      if (next === undefined) this.#sentCount -= 1;
      else next();
    }
  }

  #send(child: Process, message: EmbedMessage | ScoreMessage): Promise<EmbedderMessage> {
    const { id } = message;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#settle(id, new ApiError("deadline_exceeded"));
        this.kill();
      }, this.#deps.messageMs);
      const settle: Waiting["settle"] = (found) => (found instanceof ApiError ? reject(found) : resolve(found));
      this.#waiting.set(id, { settle, timer });
      try {
        child.send(message);
      } catch {
        this.#settle(id, new ApiError("worker_lost"));
      }
    });
  }

  #settle(id: number, found: EmbedderMessage | ApiError): void {
    const waiting = this.#waiting.get(id);
    if (waiting === undefined) return;
    clearTimeout(waiting.timer);
    this.#waiting.delete(id);
    waiting.settle(found);
  }
}

/** Makes the service for a configuration. @throws Error naming a file of a model's folder */
export function openEmbedding(
  config: Config,
  env: Readonly<Record<string, string | undefined>>,
  tokenizer: TextTokenizer,
  log: Log,
): EmbeddingService {
  const { embeddingModelDir: folder, rerankModelDir: rerankFolder } = config;
  return new EmbeddingService({
    argv: [process.execPath, programPath("embedder")],
    env: embedderEnvironment(config, env),
    text: folder === undefined ? plainEmbeddingText(tokenizer) : readEmbeddingText(folder),
    pairs: rerankFolder === undefined ? undefined : new PairText(rerankFolder),
    messageMs: limits.embedMs,
    maxWaiting: limits.embeddingQueue,
    log,
  });
}
