/** Answers many questions at once by an engine of its own: each step decodes a token of every one. */
import { CommandError } from "../../../gateway/cli/support/command.ts";
import { Lowerer, type LowerInput } from "../../../gateway/lower/plan.ts";
import { ChatTemplate } from "../../../gateway/text/chat-template.ts";
import { TokenBytes } from "../../../gateway/text/detokenizer.ts";
import { readModelText } from "../../../gateway/text/model-text.ts";
import { TextTokenizer } from "../../../gateway/text/tokenizer.ts";
import { CpuBackend, numericMode, openArithmetic } from "../../../worker/backend/cpu/cpu-backend.ts";
import { parseWorkerConfig } from "../../../worker/config.ts";
import { greedySampling } from "../../../worker/contract/greedy-sampling.ts";
import type { TokenPlan, WorkerMessage } from "../../../worker/contract/messages.ts";
import type { SparseParams, SparseReport } from "../../../worker/contract/sparse.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";
import { Engine } from "../../../worker/engine/loop.ts";
import { loadModel } from "../../../worker/model/load.ts";

/** Tokens that a row chooses, at most. */
const mostListTokens = 4_096;

export const salt = "YmVuY2g=" as CacheSalt;

/** What is asked; `params`: undefined for a dense answer. */
export interface Asked {
  readonly input: LowerInput;
  readonly maxAnswerTokens: number;
  readonly params: SparseParams | undefined;
}

export interface Answer {
  readonly text: string;
  readonly tokens: number;
  readonly sparse: SparseReport | undefined;
}

interface Pending {
  readonly tokenIds: number[];
  readonly done: (answer: Answer) => void;
}

export class Answerer {
  readonly #backend: CpuBackend;
  readonly #engine: Engine;
  readonly #lowerer: Lowerer;
  readonly #tokenizer: TextTokenizer;
  readonly #tokenBytes: TokenBytes;
  readonly #pending = new Map<string, Pending>();
  readonly #failures: string[] = [];
  /** Requests that decode together, at most. */
  readonly #mostRequests: number;
  readonly model: string;
  #count = 0;

  /**
   * @param mostRequests that decode together
   * @param env settings of a worker, in place of its defaults
   */
  static async open(
    folder: string,
    mostRequests: number,
    env: Readonly<Record<string, string | undefined>>,
  ): Promise<Answerer> {
    const config = parseWorkerConfig({ ...env, SPANGATE_MODEL: folder });
    const { kernels, dense } = await openArithmetic(config);
    const mode = numericMode({ ...config, dense });
    const model = loadModel(config.modelFolder, mode);
    const sparse = { seats: mostRequests, listTokens: mostListTokens, shadowBits: 4, rings: true } as const;
    const { kvBytes = 2 ** 30, stepTokens: maxRows } = config;
    const options = { ...config, sparse, dense, kvBytes, maxRows, maxLogitRows: 64, kernels };
    return new Answerer(folder, mostRequests, await CpuBackend.open(model, options), model, mode);
  }

  private constructor(
    folder: string,
    mostRequests: number,
    backend: CpuBackend,
    model: ReturnType<typeof loadModel>,
    mode: string,
  ) {
    const text = readModelText(folder);
    const { blockTokens, contextTokens } = backend.shape;
    const template = new ChatTemplate(text);
    this.model = `${model.id} (${mode})`;
    this.#mostRequests = mostRequests;
    this.#backend = backend;
    this.#tokenizer = new TextTokenizer(text, { cacheBytes: 16_000_000 });
    const card = { digest: model.digest, blockTokens, contextTokens };
    this.#lowerer = new Lowerer({ template, tokenizer: this.#tokenizer, card, cacheBytes: 16_000_000 });
    this.#tokenBytes = new TokenBytes(text.tokenizer, template.signs);
    this.#engine = new Engine({
      backend,
      eosTokenIds: model.eosTokenIds,
      clock: () => performance.now(),
      emit: (message) => this.#take(message),
      // Every row chooses: what it is worth is not asked here.
      sparse: { fromTokens: 0, mostCost: Number.POSITIVE_INFINITY },
    });
  }

  countTokens(text: string): number {
    return this.#tokenizer.countTokens(text);
  }

  promptTokens(input: LowerInput): number {
    return this.#lowerer.lower(input).runs.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
  }

  /** Answers all of it, with as many at once as there are seats; calls `done` as each is answered. */
  async answerAll<A extends Asked>(asked: Iterable<A>, done: (asked: A, answer: Answer) => void): Promise<void> {
    for (const each of asked) {
      while (this.#pending.size >= this.#mostRequests) await this.#step();
      this.#submit(this.#lowerer.lower(each.input), each, (answer) => done(each, answer));
    }
    while (this.#pending.size > 0) await this.#step();
  }

  async close(): Promise<void> {
    await this.#backend.dispose();
  }

  #submit(plan: TokenPlan, { maxAnswerTokens: maxTokens, params: sparse }: Asked, done: Pending["done"]): void {
    const requestId = `${this.#count++}`;
    this.#pending.set(requestId, { tokenIds: [], done });
    const params = { maxTokens, minTokens: 0, ignoreEos: false, stopTokenIds: [], sampling: greedySampling };
    this.#engine.submit({ type: "submit", requestId, plan, params, reuse: true, ...(sparse && { sparse }) });
  }

  async #step(): Promise<void> {
    const goesOn = await this.#engine.step();
    const [failure] = this.#failures;
    if (failure !== undefined) throw new CommandError(failure);
    if (!goesOn && this.#pending.size > 0) throw new CommandError("an answer has no end");
  }

  #take(message: WorkerMessage): void {
    if (message.type === "failed") this.#failures.push(message.message);
    if (message.type !== "tokens" && message.type !== "finished") return;
    const pending = this.#pending.get(message.requestId);
    if (pending === undefined) return;
    if (message.type === "tokens") {
      pending.tokenIds.push(...message.tokenIds);
      return;
    }
    this.#pending.delete(message.requestId);
    pending.done({ text: this.#textOf(pending.tokenIds), tokens: pending.tokenIds.length, sparse: message.sparse });
  }

  #textOf(tokenIds: readonly number[]): string {
    const bytes = tokenIds.flatMap((tokenId) => this.#tokenBytes.describe(tokenId).bytes);
    return new TextDecoder().decode(Uint8Array.from(bytes)).trim();
  }
}
