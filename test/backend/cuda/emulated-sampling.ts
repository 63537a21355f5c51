/** The sampling kernels, by the host's sampler (kernels/cuda/sampling/sampling.cuh has the words). */

import type { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import { greedySampling } from "../../../worker/contract/greedy-sampling.ts";
import { argmax, tokenLogprob } from "../../../worker/sample/logprobs.ts";
import { Sampler } from "../../../worker/sample/sampler.ts";
import type { Values } from "./emulated-heads.ts";
import type { EmulatedMemory } from "./emulated-memory.ts";

const buffer = (value: unknown): DeviceBuffer => value as DeviceBuffer;
const unsigned = (word: number): number => word >>> 0;

export function emulatedSampling(memory: EmulatedMemory, values: Values, [grid]: readonly number[]): void {
  const [logits, vocab, rows, edits, saved, rowCount, sampledIds] = values;
  const vocabSize = Number(vocab);
  const count = memory.int32(buffer(rowCount))[0];
  if (count > grid) throw new RangeError(`a grid of ${grid} for ${count} rows`);
  for (let row = 0; row < count; row++) {
    const words = memory.int32(buffer(rows)).subarray(row * 16, (row + 1) * 16);
    const floats = memory.float32(buffer(rows)).subarray(row * 16, (row + 1) * 16);
    const own = memory.float32(buffer(logits)).slice(row * vocabSize, (row + 1) * vocabSize);
    const [inverseTemperature, topP, minP, , repetition, presence, frequency] = floats;
    for (let at = words[7]; at < words[7] + words[8]; at++) {
      const [tokenId, flags, generated] = memory.int32(buffer(edits)).subarray(at * 4, at * 4 + 3);
      if (at >= memory.float32(buffer(saved)).length) throw new RangeError(`edit ${at} has no place for its logit`);
      let logit = own[tokenId];
      if (flags & 1) logit = logit > 0 ? logit / repetition : logit * repetition;
      if (generated > 0) logit -= frequency * generated + presence;
      logit += memory.float32(buffer(edits))[at * 4 + 3];
      own[tokenId] = flags & 2 ? Number.NEGATIVE_INFINITY : logit;
    }
    const temperature = inverseTemperature === 0 ? 0 : 1 / inverseTemperature;
    const seed = unsigned(words[9]) + (words[10] | 0) * 2 ** 32;
    const params = { ...greedySampling, temperature, topP, minP, topK: words[3], seed };
    const index = unsigned(words[11]) + unsigned(words[12]) * 2 ** 32;
    const request = { params, history: undefined, bannedTokenIds: [], index };
    memory.int32(buffer(sampledIds))[row] = new Sampler(vocabSize).sample(own, request).tokenId;
  }
}

export function emulatedLogprobs(memory: EmulatedMemory, values: Values, [grid]: readonly number[]): void {
  const [logits, vocab, rows, sampledIds, rowCount, stride, chosen, topIds, topLogprobs] = values;
  const [vocabSize, topStride] = [Number(vocab), Number(stride)];
  const count = memory.int32(buffer(rowCount))[0];
  if (count > grid) throw new RangeError(`a grid of ${grid} for ${count} rows`);
  for (let row = 0; row < count; row++) {
    const topCount = memory.int32(buffer(rows))[row * 16 + 13];
    if (topCount < 0) continue;
    const own = memory.float32(buffer(logits)).subarray(row * vocabSize, (row + 1) * vocabSize);
    const tokenId = memory.int32(buffer(sampledIds))[row];
    const answer = tokenLogprob(own, tokenId, topCount);
    memory.float32(buffer(chosen))[row] = answer.logprob;
    if (topCount > 0 && answer.top[0][0] !== argmax(own)) throw new Error("the first of the best is another");
    for (const [n, [id, logprob]] of answer.top.entries()) {
      memory.int32(buffer(topIds))[row * topStride + n] = id;
      memory.float32(buffer(topLogprobs))[row * topStride + n] = logprob;
    }
  }
}
