/**
 * At temperature 0 an answer is the same text however it is computed: alone and cold, in a full batch, from
 * prepared fragments, from fragments prepared again after their eviction, and with `--tier` from fragments that left the
 * pool and were brought back. Where float32 rounding flips a near-tie, the margin between the two tokens in the lone run
 * is shown.
 */
import type { HttpClient } from "../../gateway/cli/support/client.ts";
import { kvBytesOf } from "../../worker/native/cpu-kernels.ts";
import { startTestServer } from "../support/server.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { mapConcurrent } from "./support/concurrent.ts";
import { type EvalQuestion, evalRequest, readEvalQuestions } from "./support/eval-sets.ts";
import { kvOption, kvSettings } from "./support/kv.ts";
import { tierOf } from "./support/kv-tiers.ts";
import { fillerWords } from "./support/prompts.ts";
import { figure } from "./support/stats.ts";
import { tierAnswers } from "./support/tier-answers.ts";

const defaultQuestionCount = 200;
const batchConcurrency = 64;
/** Log-probabilities closer than this are a tie that the order of float32 sums may decide. */
const nearTieNats = 1e-3;
/** Room for the fragments of a full batch of questions; small enough that the evicting prompts push all of them out. */
const kvBytes = 512 * 2 ** 20;
const evictingPrompts = 240;

interface TokenLogprob {
  readonly token: string;
  readonly top_logprobs: readonly { readonly token: string; readonly logprob: number }[];
}

interface Completion {
  readonly choices: readonly {
    readonly message: { readonly content: string | null };
    readonly logprobs: { readonly content: readonly TokenLogprob[] } | null;
  }[];
  readonly usage: { readonly prompt_tokens_details: { readonly cached_tokens: number } };
}

interface Answer {
  readonly text: string;
  readonly tokens: readonly TokenLogprob[];
  readonly cachedTokens: number;
}

interface Flip {
  readonly variant: string;
  readonly question: string;
  readonly texts: readonly [alone: string, other: string];
  /** Between the first two tokens of the lone run where the texts part; undefined when they differ in length only. */
  readonly marginNats: number;
}

async function ask(client: HttpClient, question: EvalQuestion, model: string, reuse: boolean): Promise<Answer> {
  const body = { ...evalRequest(question, model), logprobs: true, top_logprobs: 2, spangate: { reuse } };
  const { choices, usage } = await client.json<Completion>("POST", "/v1/chat/completions", body);
  return {
    text: choices[0]?.message.content ?? "",
    tokens: choices[0]?.logprobs?.content ?? [],
    cachedTokens: usage.prompt_tokens_details.cached_tokens,
  };
}

function flipOf(variant: string, question: string, alone: Answer, other: Answer): Flip | undefined {
  if (alone.text === other.text) return undefined;
  const parting = alone.tokens.find(({ token }, index) => token !== other.tokens[index]?.token);
  const [first, second] = parting?.top_logprobs ?? [];
  const marginNats = first && second ? first.logprob - second.logprob : Number.POSITIVE_INFINITY;
  return { variant, question, texts: [alone.text, other.text], marginNats };
}

function meanCached(answers: readonly Answer[]): number {
  return answers.reduce((sum, { cachedTokens }) => sum + cachedTokens, 0) / answers.length;
}

/** Fills the pool with prompts of nobody, so that what was cached has to go. */
async function evictAll(client: HttpClient, model: string): Promise<void> {
  await mapConcurrent(Array.from({ length: evictingPrompts }), 8, (_, index) => {
    const content = fillerWords(500_000 + index, 250).join(" ");
    return client.json("POST", "/v1/chat/completions", { model, messages: [{ role: "user", content }], max_tokens: 1 });
  });
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const questionCount = Number(option("questions") ?? defaultQuestionCount);
  const all = readEvalQuestions(["facts-1", "facts-3", "facts-6", "facts-12", "two-hop"]);
  const questions = Array.from(
    { length: questionCount },
    (_, i) => all[Math.floor((i * all.length) / questionCount)],
  ).filter((question) => question !== undefined);
  const kv = option("kv");
  const tier = option("tier");
  if (tier !== undefined) return await tierAnswers({ tier: tierOf(tier), kv, questions, say });
  // As many tokens as in float16: eviction is by prompts of so many.
  const poolBytes = kv === "mx8" ? kvBytesOf("mx8", kvBytes / 2) : kvBytes;
  await using server = await startTestServer({ env: { SPANGATE_KV_BYTES: String(poolBytes), ...kvSettings(kv) } });
  const { client } = await server.tenant("bench");
  const { model } = server;
  const askEach = (concurrency: number, reuse: boolean) =>
    mapConcurrent(questions, concurrency, (question) => ask(client, question, model, reuse));

  say("alone, cold");
  const alone = await askEach(1, false);
  say("in a full batch, cold");
  const batched = await askEach(batchConcurrency, false);
  const [prepared, preparedBatch, again]: [Answer[], Answer[], Answer[]] = [[], [], []];
  let foundAfterEviction = 0;
  for (let start = 0; start < questions.length; start += batchConcurrency) {
    say(`prepared, and prepared again after eviction: question ${start + 1} and on`);
    const group = questions.slice(start, start + batchConcurrency);
    for (const question of group) {
      await ask(client, question, model, true);
      prepared.push(await ask(client, question, model, true));
    }
    const together = await mapConcurrent(group, batchConcurrency, (question) => ask(client, question, model, true));
    preparedBatch.push(...together);
    await evictAll(client, model);
    for (const [index, question] of group.entries()) {
      const first = await ask(client, question, model, true);
      // Later questions may be about the documents of earlier ones.
      if (index === 0) foundAfterEviction = Math.max(foundAfterEviction, first.cachedTokens);
      again.push(await ask(client, question, model, true));
    }
  }

  const variants = {
    "full batch": batched,
    prepared,
    "prepared, full batch": preparedBatch,
    "prepared again after eviction": again,
  };
  const rows = Object.entries(variants).map(([variant, answers]) => {
    const flips = questions.flatMap(({ question }, i) => {
      const [lone, other] = [alone[i], answers[i]];
      return lone && other ? (flipOf(variant, question, lone, other) ?? []) : [];
    });
    return { variant, flips, meanCached: meanCached(answers) };
  });
  const flips = rows.flatMap((row) => row.flips);
  return {
    model: kv === undefined ? model : `${model} (KV ${kv})`,
    header: ["against alone and cold", "same text", "other text", "mean cached tokens"],
    rows: rows.map((row) => [
      row.variant,
      String(questions.length - row.flips.length),
      String(row.flips.length),
      figure(row.meanCached),
    ]),
    notes: flips.map(
      (flip) => `${flip.variant}: margin ${flip.marginNats.toExponential(2)} nats: ${flip.texts.join(" | ")}`,
    ),
    bars: [
      atLeast(
        "prepared tokens found in a full batch / one by one",
        meanCached(preparedBatch) / meanCached(prepared),
        0.99,
      ),
      atMost("tokens found right after eviction", foundAfterEviction, 0),
      atMost(
        "other texts that no near-tie explains",
        flips.filter(({ marginNats }) => marginNats > nearTieNats).length,
        0,
      ),
    ],
    details: { questions: questions.length, nearTieNats, flips },
  };
}

export const determinismBench: Bench = {
  name: "determinism",
  summary: "200 answers at temperature 0: alone, in a full batch, prepared, prepared again after eviction",
  options: {
    questions: `N  how many (${defaultQuestionCount})`,
    kv: kvOption,
    tier: "host | disk | s3  where KV is that left the pool; questions are then about fragments of vector stores",
  },
  run,
};
