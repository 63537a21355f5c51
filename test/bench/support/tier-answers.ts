/** Answers over fragments whose KV is computed, and over the same fragments when it is brought from outside the pool. */
import type { HttpClient } from "../../../gateway/cli/support/client.ts";
import { prepareStore } from "../../../gateway/cli/support/operations.ts";
import { kvBytesOf } from "../../../worker/native/cpu-kernels.ts";
import { startTestServer } from "../../support/server.ts";
import { atLeast, atMost, type BenchReport } from "../bench.ts";
import { mapConcurrent } from "./concurrent.ts";
import type { EvalQuestion } from "./eval-sets.ts";
import { askFragments, ingestTexts, type TextStore } from "./fragment-store.ts";
import { kvSettings } from "./kv.ts";
import { cameFrom, type FarTier, leaveInBucket, openTiers } from "./kv-tiers.ts";
import { fillerWords } from "./prompts.ts";

/** In float16. A group of questions finds room in it, and some prompts push all of their KV out. */
const kvBytes = 128 * 2 ** 20;
const groupQuestions = 8;
const [evictingPrompts, evictingWords] = [45, 400];
const [maxTokens, mostDocumentTokens] = [200, 1_600];

interface TierAnswersOptions {
  readonly tier: FarTier;
  readonly kv: string | undefined;
  readonly questions: readonly EvalQuestion[];
  readonly say: (line: string) => void;
}

type Answers = Awaited<ReturnType<typeof askFragments>>[];

/**
 * How the questions of a group are asked, and what part of the fragments has to come from the tier for the texts to say
 * anything of it. Short fragments are sometimes computed sooner than loaded, beside others' answers often, and so they are
 * when a bucket is asked for them first.
 */
const waysOf = (tier: FarTier) => ({
  "one by one": { concurrency: 1, least: tier === "s3" ? 0.2 : 0.8 },
  together: { concurrency: groupQuestions, least: 0.2 },
});

export async function tierAnswers({ tier, kv, questions, say }: TierAnswersOptions): Promise<BenchReport> {
  using settings = openTiers([tier], kv === "mx8" ? kvBytesOf("mx8", kvBytes / 2) : kvBytes);
  await using server = await startTestServer({ env: { ...settings.env, ...kvSettings(kv) } });
  const { client, id: tenantId } = await server.tenant("bench");
  const stores = await storesOf(client, questions, say);
  const askEach = (which: readonly EvalQuestion[], concurrency: number): Promise<Answers> =>
    mapConcurrent(which, concurrency, (question) => {
      const { system, question: user } = question;
      return askFragments(client, stores.get(question.documents)?.fragments ?? [], { system, user }, maxTokens);
    });
  say("computed");
  const computed = await askEach(questions, 1);
  for (const { id } of stores.values()) await prepareStore(client, id, () => undefined, tier);
  const brought = Object.entries(waysOf(tier)).map(([name, way]) => ({ name, ...way, answers: [] as Answers }));
  for (let start = 0; start < questions.length; start += groupQuestions) {
    say(`from ${tier}: question ${start + 1} and on`);
    const group = questions.slice(start, start + groupQuestions);
    for (const { concurrency, answers } of brought) {
      await evictAll(client, server.model, 1_000_000 + start * 1_000 + concurrency * 100);
      // What was fetched is in the folder too.
      if (tier === "s3") await leaveInBucket(server, tenantId);
      answers.push(...(await askEach(group, concurrency)));
    }
  }
  const rows = brought.map(({ name, least, answers }) => ({ name, least, ...compared(tier, computed, answers) }));
  return {
    model: `${server.model}, KV in ${tier}${kv === undefined ? "" : ` (${kv})`}`,
    header: [`from ${tier}, against computed`, "same text", "other text", `fragments from ${tier}`],
    rows: rows.map(({ name, others, share }) => [
      name,
      String(questions.length - others.length),
      String(others.length),
      `${(100 * share).toFixed(1)} %`,
    ]),
    notes: rows.flatMap(({ others }) => others),
    bars: rows.flatMap(({ name, least, others, share }) => [
      atMost(`other texts, ${name}`, others.length, 0),
      atLeast(`fragments from ${tier}, share, ${name}`, share, least),
    ]),
    details: { questions: questions.length },
  };
}

/** A store for each set of documents, by the set. */
async function storesOf(client: HttpClient, questions: readonly EvalQuestion[], say: (line: string) => void) {
  const stores = new Map<EvalQuestion["documents"], TextStore>();
  for (const { documents } of questions) {
    if (stores.has(documents)) continue;
    if (stores.size % 10 === 0) say(`ingesting: ${stores.size} sets of documents`);
    const texts = documents.map(({ text }) => text);
    stores.set(documents, await ingestTexts(client, texts, mostDocumentTokens, 1));
  }
  return stores;
}

/** Fills the pool with prompts that nobody has asked, so that what was cached has to go. */
async function evictAll(client: HttpClient, model: string, firstSeed: number): Promise<void> {
  await mapConcurrent(Array.from({ length: evictingPrompts }), 8, (_, index) => {
    const content = fillerWords(firstSeed + index, evictingWords).join(" ");
    return client.json("POST", "/v1/chat/completions", { model, messages: [{ role: "user", content }], max_tokens: 1 });
  });
}

/** Which answers have another text than the computed ones, and how many of the fragments came from the tier. */
function compared(tier: FarTier, computed: Answers, answers: Answers) {
  const others = answers.flatMap(({ text }, index) => {
    const alone = computed[index]?.text;
    return text === alone ? [] : [`${alone} | ${text}`];
  });
  const sources = answers.flatMap((answer) => answer.sources);
  return { others, share: sources.filter((source) => cameFrom(tier, source)).length / sources.length };
}
