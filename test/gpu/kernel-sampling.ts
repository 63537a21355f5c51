/** Tokens and log-probabilities that the device draws against worker/sample, over a true vocabulary. */
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import { encodeSamples, SampleAnswer, topStride } from "../../worker/backend/cuda/sampling.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { SamplingParams, TokenLogprob } from "../../worker/contract/messages.ts";
import { TokenHistory } from "../../worker/sample/penalties.ts";
import { type SampleRequest, Sampler } from "../../worker/sample/sampler.ts";
import type { Random } from "../native/random.ts";

const kinds: readonly Partial<SamplingParams>[] = [
  { topLogprobs: 0 },
  { temperature: 1, topLogprobs: 20 },
  { temperature: 0.7, topP: 0.9, topLogprobs: 5 },
  { temperature: 1, topK: 50 },
  { temperature: 1.3, topK: 40, topP: 0.8, topLogprobs: 3 },
  { temperature: 1, minP: 0.05 },
  { temperature: 2, topP: 0.95, minP: 0.02 },
  { temperature: 1, topK: 9_000, topP: 0.99 },
  { temperature: 0.8, topP: 0.9, repetitionPenalty: 1.2, presencePenalty: 0.5, frequencyPenalty: 0.25 },
  { temperature: 0, repetitionPenalty: 1.3, topLogprobs: 2 },
];

/** Peaked like a model's, flat, and with many equal logits. */
function randomLogits(random: Random, kind: number, vocabSize: number): Float32Array {
  const logits = random.normals(vocabSize, Number.POSITIVE_INFINITY);
  if (kind === 1) return logits;
  for (let i = 0; i < vocabSize; i++) logits[i] = kind === 0 ? logits[i] * 3 - 5 : Math.round(logits[i] * 2);
  if (kind === 0) for (let i = 0; i < 60; i++) logits[random.integer(0, vocabSize - 1)] = 6 + 5 * random.next();
  return logits;
}

function randomRequest(random: Random, kind: number, vocabSize: number): SampleRequest {
  const token = () => random.integer(0, vocabSize - 1);
  const bias =
    kind % 3 === 0
      ? ([
          [token(), 9.5],
          [token(), -3],
        ] as const)
      : [];
  const params = {
    ...greedySampling,
    ...kinds[kind % kinds.length],
    seed: random.integer(-(2 ** 40), 2 ** 50),
    logitBias: bias,
  };
  const prompt = Int32Array.from({ length: 300 }, token);
  const history = TokenHistory.forParams(params, () => [prompt]);
  for (let i = 0; i < 20; i++) history?.add(prompt[i % 7]);
  const bannedTokenIds = kind % 4 === 1 ? [...new Set([token(), token(), token()])] : [];
  return { params, history, bannedTokenIds, index: random.integer(0, 2 ** 33) };
}

/** @throws Error when other tokens are the best */
function logprobDifference(wanted: TokenLogprob, got: TokenLogprob | undefined): number {
  const ids = (top: TokenLogprob["top"]) => top.map(([id]) => id).join();
  if (got === undefined || ids(wanted.top) !== ids(got.top)) throw new Error(`best are ${got && ids(got.top)}`);
  const differences = wanted.top.map(([, logprob], n) => Math.abs(logprob - got.top[n][1]));
  return Math.max(Math.abs(wanted.logprob - got.logprob), ...differences);
}

export async function checkSampling(device: CudaDevice, random: Random, vocabSize: number, rowCount: number) {
  const requests = Array.from({ length: rowCount }, (_, i) => randomRequest(random, i, vocabSize));
  const logits = new Float32Array(rowCount * vocabSize);
  for (let row = 0; row < rowCount; row++) logits.set(randomLogits(random, row % 3, vocabSize), row * vocabSize);
  const words = await drawOnDevice(device, logits, vocabSize, requests);
  const answers = new SampleAnswer(rowCount).decode(words, requests);
  const sampler = new Sampler(vocabSize);
  const others: number[] = [];
  let worst = 0;
  for (const [row, request] of requests.entries()) {
    const wanted = sampler.sample(logits.subarray(row * vocabSize, (row + 1) * vocabSize), request);
    const got = answers[row];
    if (got === undefined || got.tokenId !== wanted.tokenId) others.push(row);
    else if (wanted.logprob !== undefined) worst = Math.max(worst, logprobDifference(wanted.logprob, got.logprob));
  }
  // The twin sums rounded weights: where the border between two tokens lies, the last bits differ.
  if (others.length > rowCount / 100) throw new Error(`other tokens in rows ${others} of ${rowCount}`);
  if (!(worst < 1e-5)) throw new Error(`a log-probability is ${worst} off`);
  return `${rowCount - others.length} of ${rowCount} tokens equal, log-probabilities within ${worst.toExponential(1)}`;
}

async function drawOnDevice(
  device: CudaDevice,
  logits: Float32Array,
  vocabSize: number,
  requests: readonly SampleRequest[],
): Promise<Int32Array> {
  const rowCount = requests.length;
  const { rows, edits } = encodeSamples(requests);
  const put = (name: string, values: Float32Array | Int32Array) => {
    const staging = device.allocateHost(name, values.byteLength + 4);
    staging.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
    const buffer = device.allocate(name, values.byteLength + 4);
    device.copyIn(buffer, staging);
    return buffer;
  };
  const logitBuffer = put("logits", logits);
  const [rowBuffer, editBuffer] = [put("rows", rows), put("edits", edits)];
  const count = put("count", Int32Array.of(rowCount));
  const saved = device.allocate("saved", edits.length + 4);
  const places = new SampleAnswer(rowCount);
  const answer = device.allocate("answer", places.wordCount * 4);
  device.fill(answer, 0xff);
  const at = (place: number) => answer.slice(place * 4);
  const ids = at(places.ids);
  const size = { grid: [rowCount], blockThreads: 1024 } as const;
  device.prepare("sample_rows", logitBuffer, vocabSize, rowBuffer, editBuffer, saved, count, ids)(size);
  const tops = [topStride, at(places.chosen), at(places.topIds), at(places.topLogprobs)] as const;
  device.prepare("logprobs", logitBuffer, vocabSize, rowBuffer, ids, count, ...tops)(size);
  const out = device.allocateHost("answer", places.wordCount * 4);
  device.copyOut(out, answer);
  const after = device.allocateHost("logits", logits.byteLength);
  device.copyOut(after, logitBuffer.slice(0, logits.byteLength));
  await device.settled();
  const before = new Uint8Array(logits.buffer, logits.byteOffset, logits.byteLength);
  if (Buffer.compare(before, after) !== 0) throw new Error("logits are not as they were");
  return new Int32Array(out.buffer, out.byteOffset, places.wordCount);
}
