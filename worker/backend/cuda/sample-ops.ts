/** Launches of the kernels that draw tokens on the device. */
import type { ForwardParts, Op } from "./forward-parts.ts";
import { topStride } from "./sampling.ts";
import type { StepLayout } from "./staging.ts";

/** The launches that follow the head: they draw a token for each logit row and compute its log-probabilities. */
export function sampleOps(parts: ForwardParts, layout: StepLayout): Op[] {
  const { device, config, workspace, staging, answer } = parts;
  const { logits, savedLogits } = workspace;
  const { vocabSize } = config;
  const rows = staging.list(layout.samples);
  const count = staging.count("logitRows");
  const list = (firstWord: number) => workspace.answer.slice(firstWord * 4);
  const ids = list(answer.ids);
  const draw = device.prepare("sample_rows", logits, vocabSize, rows, staging.list(0), savedLogits, count, ids);
  const report = device.prepare(
    "logprobs",
    logits,
    vocabSize,
    rows,
    ids,
    count,
    topStride,
    list(answer.chosen),
    list(answer.topIds),
    list(answer.topLogprobs),
  );
  return [draw, report].map(
    (launch) =>
      ({ logitRows }) =>
        launch({ grid: [logitRows], blockThreads: 1024 }),
  );
}
