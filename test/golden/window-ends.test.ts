/**
 * Prompts whose texts are a token shorter than a window, as long, or a token longer: the same greedy text whether they are
 * computed alone or beside others, packed or not, cold or prepared, with all the room they want or with blocks taken from
 * them. Spans and plain prompts. The check takes a few, `--all` 200.
 */
import { afterAll, describe, expect, test } from "bun:test";
import { join } from "node:path";
import { buildCpuKernels } from "../../kernels/build.ts";
import { foldSpan, rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { PlanRun, TokenPlan } from "../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { CpuKernels, type KvPool, type KvPoolOptions } from "../../worker/native/cpu-kernels.ts";
import { Random } from "../native/random.ts";
import { effort } from "../support/effort.ts";
import { testSeed } from "../support/seed.ts";
import { openOnCpu } from "./cpu-model.ts";
import type { GoldenModel, GoldenPrompt } from "./golden-model.ts";

const libraryPath = await buildCpuKernels();
const promptCount = effort(12, 200);
/** Of both models. */
const window = 24;
const lengths = [window - 1, window, window + 1];
const tokenCount = 6;

/** No row shares loads of KV with another. */
class UnpackedKernels extends CpuKernels {
  override openPool(options: KvPoolOptions): KvPool {
    return super.openPool({ ...options, packing: false });
  }
}

const drawTokens = (random: Random, count: number) => Array.from({ length: count }, () => random.integer(3, 159));

function makePrompts(random: Random): GoldenPrompt[] {
  const draw = (count: number) => drawTokens(random, count);
  const fragments = lengths.map(draw);
  const systems = [0, 1, ...lengths].map(draw);
  return Array.from({ length: promptCount }, (_, index): GoldenPrompt => {
    const parts = {
      system: random.pick(systems),
      fragments: random.shuffle([...fragments]).slice(0, random.integer(1, 3)),
      user: draw(random.pick([1, ...lengths])),
    };
    if (index % 2 === 0) return { kind: "span", ...parts };
    return { kind: "causal", ids: [...parts.system, ...parts.fragments.flat(), ...parts.user] };
  });
}

/** A question, an answer that saw it, and a prompt at whose front the answer stands alone. */
function quotingPlan([question, answer, prompt]: readonly number[][]): TokenPlan {
  const root = rootKey("golden", "windows" as CacheSalt, "main");
  const runOf = (
    tokens: number[],
    key: BlockKey,
    closed: boolean,
    place: Pick<PlanRun, "position" | "sees">,
  ): PlanRun => {
    const tokenIds = Int32Array.from(tokens);
    return { kind: "main", tokenIds, blockKeys: runBlockKeys(key, tokenIds, 16, closed), rootKey: key, ...place };
  };
  const [first, length] = [runOf(question, root, true, { position: 0, sees: [] }), question.length];
  const seen = { run: 0, firstToken: 0, tokenCount: length, offset: 0 };
  const second = runOf(answer, first.blockKeys.at(-1) ?? root, true, { position: length, sees: [seen] });
  const quoted = { run: 1, firstToken: 0, tokenCount: answer.length, offset: -length };
  const key = foldSpan(root, second.blockKeys.at(-1) ?? root);
  return { runs: [first, second, runOf(prompt, key, false, { position: answer.length, sees: [quoted] })] };
}

describe.each(["mistral-window", "gpt-oss", "gemma2"])("%s", async (name) => {
  const folder = join(import.meta.dir, name);
  const open = (change: Parameters<typeof openOnCpu>[2]) =>
    openOnCpu(folder, "float32", { dense: "native", ...change });
  const prompts = makePrompts(new Random(testSeed()));
  const packed = await open({});
  const unpacked = await open({ kernels: new UnpackedKernels(libraryPath, { threadCount: 2 }) });
  afterAll(() => Promise.all([packed.dispose(), unpacked.dispose()]));

  /** Each alone and from nothing. */
  const cold = async (model: GoldenModel): Promise<number[][]> => {
    const answers: number[][] = [];
    for (const prompt of prompts) answers.push(...(await model.answers([prompt], tokenCount, false)));
    return answers;
  };
  const expected = await cold(unpacked);

  test("answers differ, so that they show something", () => {
    expect(new Set(expected.map(String)).size).toBeGreaterThan(promptCount / 2);
  });

  test("packed as unpacked, alone and from nothing", async () => {
    expect(await cold(packed)).toEqual(expected);
  });

  test("prepared, and then together", async () => {
    for (const model of [packed, unpacked]) {
      for (const [i, prompt] of prompts.entries())
        expect(await model.answers([prompt], tokenCount)).toEqual([expected[i]]);
      expect(await model.answers(prompts, tokenCount)).toEqual(expected);
    }
  });

  test("together from nothing", async () => {
    for (const model of [packed, unpacked]) expect(await model.answers(prompts, tokenCount, false)).toEqual(expected);
  });

  test("with fragments that are moved to where they stand", async () => {
    const moving = await open({ positions: "relocate" });
    for (const [i, prompt] of prompts.entries())
      expect(await moving.answers([prompt], tokenCount)).toEqual([expected[i]]);
    expect(await moving.answers(prompts, tokenCount)).toEqual(expected);
    await moving.dispose();
  });

  test("with too few blocks for all", async () => {
    const {
      num_hidden_layers: layers,
      num_key_value_heads: heads,
      head_dim: size,
    } = await Bun.file(join(folder, "config.json")).json();
    // 14 blocks of 16 tokens: the longest prompt takes 10.
    const small = await open({ kvBytes: 14 * 16 * 2 * layers * heads * size * 4 });
    const some = prompts.slice(0, 12);
    expect(
      await small.answers(some, 40).then((answers) => answers.map((tokens) => tokens.slice(0, tokenCount))),
    ).toEqual(expected.slice(0, some.length));
    expect(small.preemptions).toBeGreaterThan(0);
    await small.dispose();
  });

  test("an answer that another prompt quotes without its question stands where it stood in its own chain", async () => {
    const slow = await open({ isa: "reference" });
    const draw = new Random(testSeed() + 2);
    for (const length of lengths) {
      const plan = quotingPlan([length, window + 3, length].map((count) => drawTokens(draw, count)));
      const [answer] = await slow.answersTo([plan], tokenCount, false);
      for (const model of [packed, unpacked]) {
        for (const reuse of [false, true, true])
          expect(await model.answersTo([plan], tokenCount, reuse)).toEqual([answer]);
      }
    }
    await slow.dispose();
  });

  test("a fragment at the very front is a plain prompt's beginning", async () => {
    const draw = new Random(testSeed() + 1);
    for (const length of lengths) {
      const [fragment, user] = [length, window].map((count) => drawTokens(draw, count));
      const span: GoldenPrompt = { kind: "span", system: [], fragments: [fragment], user };
      const plain: GoldenPrompt = { kind: "causal", ids: [...fragment, ...user] };
      expect(await packed.answers([span], tokenCount)).toEqual(await packed.answers([plain], tokenCount));
    }
  });
});
