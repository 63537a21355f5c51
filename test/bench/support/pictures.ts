/** The pictures of docs/pictures and the stored results that they are drawn from, each by its benchmark. */
import type { Bench } from "../bench.ts";
import { needleBench } from "../needle.ts";
import { nestedBench } from "../nested.ts";
import { ragBench } from "../rag.ts";

export interface StoredPicture {
  readonly picture: string;
  readonly result: string;
  readonly bench: Bench;
}

const stored = (picture: string, result: string, bench: Bench): StoredPicture => ({
  picture: `docs/pictures/${picture}.svg`,
  result: `test/bench/results/${result}.json`,
  bench,
});

export const storedPictures: readonly StoredPicture[] = [
  stored("rag", "rag", ragBench),
  stored("rag-h200", "gpu-rag-qwen3-8b", ragBench),
  stored("nested", "nested", nestedBench),
  stored("needle", "needle", needleBench),
];
