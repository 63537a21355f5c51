/** The encoding of sampling requests for the device (kernels/cuda/sampling/sampling.cuh) and the decoding of its answer. */
import { limits } from "../../contract/limits.ts";
import type { SampledToken, SampleRequest } from "../../sample/sampler.ts";

export const sampleWords = 16;
export const editWords = 4;
/** The most alternatives that the device reports for a token. */
export const topStride = limits.maxTopLogprobs;

const flags = { seen: 1, banned: 2 } as const;

/** The lists that one step sends to the device, valid until the next `encode`. */
export interface SampleLists {
  /** [N][sampleWords]; a row's first edit counts from the first of `edits`. */
  readonly rows: Int32Array;
  readonly edits: Int32Array;
}

export const noSamples: SampleLists = { rows: new Int32Array(0), edits: new Int32Array(0) };

export function wantsLogprobs(requests: readonly SampleRequest[]): boolean {
  return requests.some(({ params }) => params.topLogprobs >= 0);
}

interface Edit {
  flags: number;
  generatedCount: number;
  bias: number;
}

/**
 * How a request's penalties, bias and bans change logits, by token id; the same rules as worker/sample/penalties.ts.
 */
function editsOf({ params, history, bannedTokenIds }: SampleRequest): Map<number, Edit> {
  const edits = new Map<number, Edit>();
  const editOf = (tokenId: number): Edit =>
    edits.getOrInsertComputed(tokenId, () => ({ flags: 0, generatedCount: 0, bias: 0 }));
  for (const [tokenId, generatedCount] of history?.counts() ?? []) {
    edits.set(tokenId, { flags: flags.seen, generatedCount, bias: 0 });
  }
  for (const [tokenId, bias] of params.logitBias) editOf(tokenId).bias += bias;
  for (const tokenId of bannedTokenIds) editOf(tokenId).flags |= flags.banned;
  return edits;
}

export function encodeSamples(requests: readonly SampleRequest[]): SampleLists {
  const edits = requests.map(editsOf);
  const editCount = edits.reduce((sum, { size }) => sum + size, 0);
  const rows = new Int32Array(requests.length * sampleWords);
  const editList = new Int32Array(editCount * editWords);
  let at = 0;
  requests.forEach((request, row) => {
    encodeRow(request, rows, row * sampleWords, at, edits[row].size);
    for (const [tokenId, edit] of edits[row]) {
      editList.set([tokenId, edit.flags, edit.generatedCount], at * editWords);
      new Float32Array(editList.buffer)[at * editWords + 3] = edit.bias;
      at += 1;
    }
  });
  return { rows, edits: editList };
}

function encodeRow({ params, index }: SampleRequest, rows: Int32Array, at: number, firstEdit: number, count: number) {
  const floats = new Float32Array(rows.buffer, at * 4, 7);
  floats[0] = params.temperature === 0 ? 0 : 1 / params.temperature;
  floats[1] = params.topP;
  floats[2] = params.minP;
  floats[4] = params.repetitionPenalty;
  floats[5] = params.presencePenalty;
  floats[6] = params.frequencyPenalty;
  rows[at + 3] = params.topK;
  rows[at + 7] = firstEdit;
  rows[at + 8] = count;
  // The seed and the index go in halves of 32 bits, as worker/sample/rng.ts splits them.
  rows[at + 9] = params.seed >>> 0;
  rows[at + 10] = Math.floor(params.seed / 2 ** 32) >>> 0;
  rows[at + 11] = index >>> 0;
  rows[at + 12] = Math.floor(index / 2 ** 32) >>> 0;
  rows[at + 13] = params.topLogprobs;
}

/** Where each list of the sampling kernels' answer begins, in 32-bit words, for up to `rows` rows. */
export class SampleAnswer {
  /** [rows] each */
  readonly ids = 0;
  readonly chosen: number;
  /** [rows][topStride] each */
  readonly topIds: number;
  readonly topLogprobs: number;
  readonly wordCount: number;

  constructor(rows: number) {
    this.chosen = rows;
    this.topIds = 2 * rows;
    this.topLogprobs = this.topIds + rows * topStride;
    this.wordCount = this.topLogprobs + rows * topStride;
  }

  /** Decodes the token of each request from `words`; undefined where the device could draw none. */
  decode(words: Int32Array, requests: readonly SampleRequest[]): (SampledToken | undefined)[] {
    const floats = new Float32Array(words.buffer, words.byteOffset, words.length);
    return requests.map(({ params }, row) => {
      const tokenId = words[this.ids + row];
      if (tokenId < 0) return undefined;
      if (params.topLogprobs < 0) return { tokenId, logprob: undefined };
      const top = Array.from({ length: params.topLogprobs }, (_, n) => {
        const at = row * topStride + n;
        return [words[this.topIds + at], floats[this.topLogprobs + at]] as const;
      });
      return { tokenId, logprob: { tokenId, logprob: floats[this.chosen + row], top } };
    });
  }
}
