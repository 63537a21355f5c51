/** Requests that want the same documents at different places, and their answers with K moved and without. */
import type { Backend } from "../../worker/backend/backend.ts";
import type { SubmitMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { submitPlan } from "../engine/plans.ts";
import { Random } from "../native/random.ts";

/** Log-probabilities of each request's first token, by token id. */
export type Answers = ReadonlyMap<string, ReadonlyMap<number, number>>;

/** Texts, each of its own length: four documents that are shared, and what stands around them. */
export class Texts {
  private readonly documents: readonly Int32Array[];
  private readonly systems: readonly Int32Array[];
  private readonly questions: readonly Int32Array[];
  private readonly blockTokens: number;

  constructor(vocabSize: number, blockTokens: number) {
    const random = new Random(7);
    const text = (count: number) => Int32Array.from({ length: count }, () => random.integer(3, vocabSize - 1));
    this.documents = [13, 8, 22, 5].map((count) => text(Math.ceil((count * blockTokens) / 4)));
    this.systems = [1, 6, 11].map(text);
    this.questions = Array.from({ length: 12 }, () => text(4));
    this.blockTokens = blockTokens;
  }

  /** @param index picks the text before and the text after the documents */
  ask(index: number, order: readonly number[]): SubmitMessage {
    const parts = {
      system: this.systems[index % this.systems.length],
      spans: order.map((document) => this.documents[document]),
      question: this.questions[index % this.questions.length],
      blockTokens: this.blockTokens,
    };
    const sampling = { topLogprobs: 20 };
    return submitPlan(`r${index}`, parts, { params: { maxTokens: 1, ignoreEos: true }, sampling });
  }

  /** Twelve requests over all documents, in four orders. */
  askTogether(shift = 0): SubmitMessage[] {
    const orders = [
      [0, 1, 2, 3],
      [3, 2, 1, 0],
      [1, 0, 3, 2],
      [2, 3, 0, 1],
    ];
    return this.questions.map((_, i) => this.ask(i, orders[(i + shift) % orders.length]));
  }
}

/** Answers of one engine. @param groups requests of one group run at the same time */
export async function answersOf(
  backend: Backend,
  positions: "deferred" | "relocate",
  groups: readonly (readonly SubmitMessage[])[],
): Promise<Answers> {
  const answers = new Map<string, Map<number, number>>();
  const emit = (message: WorkerMessage): void => {
    if (message.type === "failed") throw new Error(message.message);
    if (message.type !== "tokens") return;
    for (const { top } of message.logprobs ?? []) answers.set(message.requestId, new Map(top));
  };
  const limits = { stepTokens: 256, maxRunningRequests: 16 };
  const engine = new Engine({ backend, eosTokenIds: [], clock: () => 0, emit, limits, debug: true, positions });
  for (const group of groups) {
    for (const message of group) engine.submit(message);
    while (await engine.step());
  }
  return answers;
}

/** The same, each computed for itself. */
export function recomputed(backend: Backend, groups: readonly (readonly SubmitMessage[])[]): Promise<Answers> {
  const alone = groups.map((group) => group.map((message) => ({ ...message, reuse: false })));
  return answersOf(backend, "deferred", alone);
}

/** Greatest difference between log-probabilities that both report. */
export function difference(a: Answers, b: Answers): number {
  const differences = [...a].flatMap(([name, logprobs]) =>
    Array.from(logprobs, ([tokenId, logprob]) => Math.abs(logprob - (b.get(name)?.get(tokenId) ?? logprob))),
  );
  return Math.max(...differences);
}
