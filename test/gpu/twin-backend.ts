/**
 * A backend that makes every call twice: on the device, and in plain loops given the same steps. What both answer is
 * compared call by call, so the engine can do with it what it likes. Tokens are the device's own: the host's sampler must
 * draw the same from the device's logits.
 */
import type { Backend, BegunStep } from "../../worker/backend/backend.ts";
import type { Batch, TokenCopies } from "../../worker/contract/batch.ts";
import { type SampledToken, type SampleRequest, Sampler } from "../../worker/sample/sampler.ts";
import { assertThat } from "./report.ts";

/** Logits of the golden models are about 3; bfloat16 is off by up to 0.08. */
export const logitTolerance = 0.1;
/** Without RoPE a copied token is off by rounding alone. */
const deviationNoise = 0.05;
/** Between float32 and float64 sums over a vocabulary. */
const logprobTolerance = 1e-3;

export class TwinBackend implements Backend {
  readonly name = "twin";
  readonly shape: Backend["shape"];
  /** Greatest distance of a logit so far. */
  worstLogit = 0;
  /** How often something was compared. */
  readonly seen = { steps: 0, mixedSteps: 0, tokens: 0, logprobs: 0, copies: 0, probes: 0, rowsAhead: 0 };
  protected readonly device: Backend;
  protected readonly loops: Backend;
  readonly #sampler: Sampler;

  constructor(device: Backend, loops: Backend) {
    assertThat(device.shape.blockCount === loops.shape.blockCount, "the two have pools of different sizes");
    this.device = device;
    this.loops = loops;
    this.shape = device.shape;
    this.#sampler = new Sampler(this.shape.vocabSize);
  }

  async forward(batch: Batch): Promise<Float32Array> {
    const logits = (await this.device.forward(batch)).slice();
    const expected = await this.loops.forward(batch);
    const worst = greatestDistance(logits, expected);
    this.worstLogit = Math.max(this.worstLogit, worst);
    assertThat(worst <= logitTolerance, `step ${this.seen.steps}: a logit is off by ${worst} (${wordsOf(batch)})`);
    this.seen.steps += 1;
    if (isMixed(batch)) this.seen.mixedSteps += 1;
    return logits;
  }

  async sampleStep(batch: Batch, requests: readonly SampleRequest[]): Promise<readonly (SampledToken | undefined)[]> {
    const logits = await this.forward(batch);
    const sampleStep = this.device.sampleStep?.bind(this.device);
    if (sampleStep === undefined) throw new Error(`${this.device.name} draws no tokens`);
    // The same step once more: it writes the same KV.
    const tokens = await sampleStep(batch, requests);
    const { vocabSize } = this.shape;
    requests.forEach((request, row) => {
      const expected = this.#sampler.sample(logits.subarray(row * vocabSize, (row + 1) * vocabSize), request);
      this.#compareToken(tokens[row], expected, request);
    });
    return tokens;
  }

  async copyTokens(copies: TokenCopies): Promise<void> {
    await this.device.copyTokens(copies);
    await this.loops.copyTokens(copies);
    this.seen.copies += copies.sourceSlots.length;
  }

  async deviations(batch: Batch): Promise<Float32Array> {
    const deviations = (await this.device.deviations(batch)).slice();
    const expected = await this.loops.deviations(batch);
    const worst = greatestDistance(deviations, expected);
    const tolerance = 0.05 * Math.max(...expected) + deviationNoise;
    assertThat(worst <= tolerance, `a deviation is off by ${worst}, more than ${tolerance} (${wordsOf(batch)})`);
    this.seen.probes += deviations.length;
    return deviations;
  }

  async dispose(): Promise<void> {
    await this.device.dispose();
    await this.loops.dispose();
  }

  #compareToken(got: SampledToken | undefined, expected: SampledToken, { params, index }: SampleRequest): void {
    const what = `token ${index} of ${JSON.stringify(params)}`;
    assertThat(got?.tokenId === expected.tokenId, `${what}: ${got?.tokenId}, the host draws ${expected.tokenId}`);
    this.seen.tokens += 1;
    assertThat((got?.logprob === undefined) === (expected.logprob === undefined), `${what}: log-probabilities`);
    if (got?.logprob === undefined || expected.logprob === undefined) return;
    const [own, other] = [got.logprob, expected.logprob];
    assertThat(own.top.length === other.top.length, `${what}: ${own.top.length} alternatives, not ${other.top.length}`);
    const values = [own.logprob, ...own.top.map(([, logprob]) => logprob)];
    const wanted = [other.logprob, ...other.top.map(([, logprob]) => logprob)];
    const worst = greatestDistance(Float32Array.from(values), Float32Array.from(wanted));
    assertThat(worst <= logprobTolerance, `${what}: a log-probability is off by ${worst}`);
    this.seen.logprobs += 1;
  }
}

/** Begins steps ahead, as the device does. Of greedy requests alone: a token's logit must be the loops' greatest, nearly. */
export class PipelinedTwin extends TwinBackend {
  /** Of the step that was waited for last. */
  #drawn: readonly (SampledToken | undefined)[] = [];

  beginStep(batch: Batch, requests: readonly SampleRequest[]): BegunStep {
    if (this.device.beginStep === undefined) throw new Error(`${this.device.name} begins no step ahead`);
    const own = structuredClone(batch);
    const begun = this.device.beginStep(batch, requests);
    const tokens = async (): Promise<readonly (SampledToken | undefined)[]> => {
      const drawn = await begun.tokens();
      const named = own.tokenIds.filter((tokenId) => tokenId < 0).length;
      const tokenIds = own.tokenIds.map((tokenId) => (tokenId < 0 ? this.#tokenOf(-1 - tokenId) : tokenId));
      const logits = await this.loops.forward({ ...own, tokenIds });
      for (const [row, token] of drawn.entries()) this.#compareGreedy(token, logits, row);
      this.#drawn = drawn;
      this.seen.steps += 1;
      this.seen.tokens += drawn.length;
      this.seen.rowsAhead += named;
      return drawn;
    };
    return { drawsOnDevice: begun.drawsOnDevice, tokens };
  }

  /** What the step before has drawn meanwhile for a row that names it. */
  #tokenOf(logitRow: number): number {
    const token = this.#drawn[logitRow];
    if (token === undefined) throw new Error(`a row names draw ${logitRow} of ${this.#drawn.length}`);
    return token.tokenId;
  }

  #compareGreedy(token: SampledToken | undefined, logits: Float32Array, row: number): void {
    const { vocabSize } = this.shape;
    const own = logits.subarray(row * vocabSize, (row + 1) * vocabSize);
    const lead = Math.max(...own) - own[token?.tokenId ?? -1];
    assertThat(
      lead <= 2 * logitTolerance,
      `step ${this.seen.steps}: token ${token?.tokenId} is ${lead} below the best`,
    );
    this.worstLogit = Math.max(this.worstLogit, lead);
  }
}

/** NaN when a number is one, or the lengths differ. */
export function greatestDistance(got: Float32Array, expected: Float32Array): number {
  if (got.length !== expected.length) return Number.NaN;
  return got.reduce((worst, value, i) => Math.max(worst, Math.abs(value - expected[i])), 0);
}

/** Rows that decode beside a piece of several. */
function isMixed({ pieceRows, logitRows }: Batch): boolean {
  const counts = [...pieceRows.subarray(1)].map((end, piece) => end - pieceRows[piece]);
  return logitRows.length > 0 && counts.includes(1) && counts.some((count) => count > 1);
}

function wordsOf({ tokenIds, pieceRows, segmentTokenCounts }: Batch): string {
  return `${tokenIds.length} rows, ${pieceRows.length - 1} pieces, segments of ${segmentTokenCounts.join(" ")} tokens`;
}
