/**
 * What the time of an answer tells of others' texts. A victim has had a text computed; a prober asks for that text and
 * for a fresh one of equal length, in random order, and times both. Another tenant's times must tell nothing; those of
 * the victim itself must tell all, or the probe would be too weak to find a leak.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { HttpClient } from "../../gateway/cli/support/client.ts";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { askChat } from "../../gateway/cli/support/operations.ts";
import { rawConfigs } from "../gpu/models.ts";
import { writeRandomModel } from "../gpu/random-model.ts";
import { startTestServer } from "../support/server.ts";
import { atLeast, atMost, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { type Auc, aucOf } from "./support/auc.ts";
import { tierOf } from "./support/kv-tiers.ts";
import { SpanTexts } from "./support/prompts.ts";
import { figure, median } from "./support/stats.ts";
import { probeFragments, type TierProbe } from "./support/tier-probe.ts";

const textTokens = 256;
/** Where KV comes from the host's memory: a text that takes long to compute by that. */
const hostTextTokens = 512;
const hostShape = "Qwen3-8B";
const defaultSamples = 2_000;
const warmUpSamples = 20;
const question = "What is it about?";

/** Where the text stands: at the begin of the prompt, or in a span. */
type Path = "prefix" | "span";

interface Arm<Where = Path | "fragment"> {
  readonly path: Where;
  readonly prober: "another tenant" | "the same tenant";
  readonly cachedMs: number[];
  readonly freshMs: number[];
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const samples = Number(option("samples") ?? defaultSamples);
  if (!Number.isInteger(samples) || samples < 2) throw new CommandError("--samples is a whole number, 2 or more");
  const [tierName, model] = [option("tier"), option("model")];
  if (model !== undefined && tierName === undefined) throw new CommandError("--model is for --tier");
  if (tierName !== undefined) return await runTier(tierName, model, samples, say);
  await using server = await startTestServer();
  const victim = (await server.tenant("victim")).client;
  const other = (await server.tenant("other")).client;
  const texts = new SpanTexts();
  let textCount = 0;
  const nextText = (): string => texts.textOf(textTokens, ++textCount);
  const arms = (["prefix", "span"] as const).flatMap((path): Arm<Path>[] => [
    { path, prober: "another tenant", cachedMs: [], freshMs: [] },
    { path, prober: "the same tenant", cachedMs: [], freshMs: [] },
  ]);
  for (let index = -warmUpSamples; index < samples; index++) {
    if (index % 100 === 0) say(`sample ${index} of ${samples}`);
    for (const arm of arms) {
      const pair = [nextText(), nextText()];
      // Whatever sets one text of a pair apart from the other must not tell which of them is cached.
      const [cached = "", fresh = ""] = isHeads() ? pair : pair.toReversed();
      await timeOf(victim, server.model, arm.path, cached);
      const prober = arm.prober === "another tenant" ? other : victim;
      const cachedFirst = isHeads();
      for (const isCached of [cachedFirst, !cachedFirst]) {
        const ms = await timeOf(prober, server.model, arm.path, isCached ? cached : fresh);
        if (index >= 0) (isCached ? arm.cachedMs : arm.freshMs).push(ms);
      }
    }
  }
  return reportOf(arms, samples, textTokens, server.model);
}

/**
 * A GPU computes a text of the demo model as soon as it has loaded it, so that not even the tenant's own times would tell
 * the two apart. With the host's memory another model is served, unless one is given: its weights are random, from a seed,
 * since nothing depends on what it says.
 */
async function runTier(tierName: string, given: string | undefined, samples: number, say: BenchContext["say"]) {
  const tier = tierOf(tierName);
  if (tier === "s3") throw new CommandError("--tier is host or disk");
  const tokens = tier === "host" ? hostTextTokens : textTokens;
  const probe = { tier, samples, warmUpSamples, tokens, say };
  if (tier === "disk" || given !== undefined) {
    const model = given === undefined ? {} : { model: given };
    return tierReport(tier, samples, tokens, await probeFragments({ ...probe, ...model }));
  }
  const folder = mkdtempSync(join(tmpdir(), "spangate-timing-"));
  try {
    const model = join(folder, hostShape);
    say(`making a model in the shape of ${hostShape}`);
    await writeRandomModel(model, { config: rawConfigs[hostShape] });
    return tierReport(tier, samples, tokens, await probeFragments({ ...probe, model }));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** The report of texts whose KV was outside the pool, with what shows that it was there. */
function tierReport(tier: string, samples: number, tokens: number, { model, arms, fromTier }: TierProbe): BenchReport {
  const report = reportOf(
    arms.map((arm) => ({ path: "fragment", ...arm })),
    samples,
    tokens,
    `${model}, KV in ${tier}`,
  );
  return { ...report, bars: [...report.bars, atLeast(`cached texts that came from ${tier}, share`, fromTier, 0.99)] };
}

const isHeads = (): boolean => Math.random() < 0.5;

/** Milliseconds to the first token, as a client sees it. */
async function timeOf(client: HttpClient, model: string, path: Path, text: string): Promise<number> {
  const content = path === "prefix" ? `${text} ${question}` : question;
  const { clientTtftMs } = await askChat(client, {
    model,
    messages: [{ role: "user", content }],
    ...(path === "span" ? { documents: [{ text }] } : {}),
    temperature: 0,
    max_tokens: 1,
    min_tokens: 1,
    ignore_eos: true,
  });
  return clientTtftMs;
}

function reportOf(arms: readonly Arm[], samples: number, tokens: number, model: string): BenchReport {
  const measured = arms.map((arm) => ({ ...arm, auc: aucOf(arm.cachedMs, arm.freshMs) }));
  return {
    model,
    header: ["text is a", "asked by", "cached p50 ms", "fresh p50 ms", "AUC", "95% interval"],
    rows: measured.map(({ path, prober, cachedMs, freshMs, auc }) => [
      path,
      prober,
      figure(median(cachedMs)),
      figure(median(freshMs)),
      auc.auc.toFixed(3),
      `${auc.from.toFixed(3)} to ${auc.to.toFixed(3)}`,
    ]),
    notes: [`${samples} samples an arm of ${tokens} tokens each, arms interleaved, cached and fresh in random order.`],
    bars: measured.flatMap(({ path, prober, auc }) => barsOf(path, prober, auc)),
  };
}

function barsOf(path: Arm["path"], prober: Arm["prober"], { auc, from, to }: Auc): Bar[] {
  const name = `AUC of ${prober}, ${path}`;
  if (prober === "the same tenant") return [atLeast(name, auc, 0.95)];
  return [atLeast(`${name}, lower end`, from, 0.46), atMost(`${name}, upper end`, to, 0.54)];
}

export const timingBench: Bench = {
  name: "timing",
  summary: "What the time of an answer tells of texts that another tenant had computed",
  options: {
    samples: `N  texts an arm (default ${defaultSamples})`,
    tier: "host | disk  where the victim's KV is, and not in the pool; texts are then fragments of vector stores",
    model: `FOLDER  for --tier, served instead of the demo model (host: of random weights in the shape of ${hostShape}, 16 GB that are made first)`,
  },
  run,
};
