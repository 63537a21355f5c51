/**
 * The embedder process: token ids in, vectors and scores of pairs out, so that neither the gateway's event loop nor a worker's steps wait
 * for it. Speaks the messages of contract/embedding.ts and ends when the gateway that started it is gone.
 */
import { giveWay } from "./base/give-way.ts";
import type { Embedder, EmbedderMessage, EmbedMessage, Reranker, ScoreMessage } from "./contract/embedding.ts";
import { ModelError } from "./model/model-error.ts";
import { openTokenEmbedder } from "./model/token-embedder.ts";

const emit = (message: EmbedderMessage): void => void process.send?.(message);

// Vectors of the served model's tokens need no onnxruntime.
const openEmbedder = async (folder: string, threadCount: number): Promise<Embedder> =>
  await (await import("./backend/onnx-embedder.ts")).openOnnxEmbedder(folder, threadCount);
const openReranker = async (folder: string, threadCount: number): Promise<Reranker> =>
  await (await import("./backend/onnx-reranker.ts")).openOnnxReranker(folder, threadCount);

async function main(): Promise<void> {
  const { SPANGATE_EMBEDDING_MODEL: folder, SPANGATE_MODEL = "", SPANGATE_MODEL_NAME: name } = process.env;
  const threadCount = Number(process.env.SPANGATE_THREADS ?? "1");
  const embedder = folder ? await openEmbedder(folder, threadCount) : openTokenEmbedder(SPANGATE_MODEL, name);
  const { SPANGATE_RERANK_MODEL: rerankFolder } = process.env;
  const reranker = rerankFolder ? await openReranker(rerankFolder, threadCount) : undefined;
  // One after the other: a run takes all threads.
  let last: Promise<void> = Promise.resolve();
  process.on("message", (message: EmbedMessage | ScoreMessage) => {
    last = last.then(async () => {
      try {
        emit(await answerTo(message, embedder, reranker));
      } catch {
        emit({ type: "failed", id: message.id });
      }
    });
  });
  emit({ type: "ready", card: embedder.card, reranker: reranker?.card });
}

async function answerTo(
  message: EmbedMessage | ScoreMessage,
  embedder: Embedder,
  reranker: Reranker | undefined,
): Promise<EmbedderMessage> {
  const { id } = message;
  if (message.type === "embed") return { type: "vectors", id, vectors: await embedder.embed(message.sequences) };
  if (reranker === undefined) return { type: "failed", id };
  return { type: "scores", id, scores: await reranker.score(message.pairs) };
}

process.on("disconnect", () => process.exit(0));
// The gateway ends us when it has drained; a signal to the whole group is not for us.
process.on("SIGINT", () => undefined);
giveWay();
try {
  await main();
} catch (error) {
  const known = error instanceof ModelError;
  emit({ type: "fatal", reason: known ? error.message : "the embedding model cannot be opened" });
  // The message goes through a pipe that `exit` would cut.
  setTimeout(() => process.exit(1), 100);
}
