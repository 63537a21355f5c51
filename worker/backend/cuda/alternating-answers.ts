/** Two places that alternate for the answers that the device copies to the host, since two steps can be in flight. */
import type { ComputeDevice, StreamMark } from "./device/device.ts";

export interface AnswerPlace {
  /** The answer, in pinned memory. */
  readonly words: Int32Array;
  /** Stands in the stream behind the copy of the answer. */
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

  /** The place for the next step's answer. It is overwritten, so the answer two steps before must have been read. */
  next(): AnswerPlace {
    this.#index = this.#index === 0 ? 1 : 0;
    return this.#places[this.#index];
  }
}
