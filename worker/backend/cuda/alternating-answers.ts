/** Where the device puts what steps answer: two places that alternate, since two steps can be in flight. */
import type { ComputeDevice, StreamMark } from "./device/device.ts";

export interface AnswerPlace {
  /** Pinned. */
  readonly words: Int32Array;
  /** Behind the copy of the answer. */
  readonly mark: StreamMark;
}

export class AlternatingAnswers {
  readonly #places: readonly [AnswerPlace, AnswerPlace];
  #index: 0 | 1 = 0;

  constructor(device: ComputeDevice, wordCount: number) {
    const placeOf = (name: string): AnswerPlace => {
      const bytes = device.allocateHost(name, wordCount * 4);
      return { words: new Int32Array(bytes.buffer, bytes.byteOffset, wordCount), mark: device.mark() };
    };
    this.#places = [placeOf("sampled tokens"), placeOf("next sampled tokens")];
  }

  /** The place of the next step; what the step before the last one answered must have been taken. */
  next(): AnswerPlace {
    this.#index = this.#index === 0 ? 1 : 0;
    return this.#places[this.#index];
  }
}
