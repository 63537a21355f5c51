/**
 * What times tell of KV that is outside the pool. Both tenants have the same texts twice; of these four, the victim's first
 * are prepared, a batch at a time, and asked for before the next batch is. The pool has room for half a batch, so that a
 * fragment is in the tier alone when it is asked for. Every fragment is asked for once.
 */
import type { HttpClient } from "../../../gateway/cli/support/client.ts";
import { prepareStore } from "../../../gateway/cli/support/operations.ts";
import { startTestServer } from "../../support/server.ts";
import { askFragments, ingestTexts, type TextStore } from "./fragment-store.ts";
import { type FarTier, openTiers } from "./kv-tiers.ts";
import { SpanTexts } from "./prompts.ts";
import { poolOf } from "./worker-stats.ts";

interface TierArm {
  readonly prober: "another tenant" | "the same tenant";
  readonly cachedMs: number[];
  readonly freshMs: number[];
}

export interface TierProbe {
  readonly model: string;
  readonly arms: readonly TierArm[];
  /** Of the victim's own questions over prepared fragments, the share whose fragment came from the tier. */
  readonly fromTier: number;
}

interface TierProbeOptions {
  readonly tier: FarTier;
  /** A folder; the demo model when absent. */
  readonly model?: string;
  readonly samples: number;
  /** Before those that count. */
  readonly warmUpSamples: number;
  /** Of each text, as a span. */
  readonly tokens: number;
  readonly say: (line: string) => void;
}

/** A tenant and its fragments: those whose texts the victim has prepared, and others. */
interface Prober {
  readonly arm: TierArm;
  readonly client: HttpClient;
  readonly cached: readonly string[];
  readonly fresh: readonly string[];
}

/** So many are prepared before they are asked for: those that were prepared last have left the pool by their turn. */
const batchFragments = 64;
const poolFragments = 32;
/** By the end of a batch there are three computed fragments for each prepared one, and the questions. */
const hostFragments = 5 * batchFragments;

export async function probeFragments(options: TierProbeOptions): Promise<TierProbe> {
  const { tier, model, samples, warmUpSamples, tokens, say } = options;
  const count = samples + warmUpSamples;
  const modelEnv: Record<string, string> = model === undefined ? {} : { SPANGATE_MODEL: model };
  const { kvBytes } = await poolOf(poolFragments * tokens, { env: modelEnv });
  using settings = openTiers([tier], kvBytes, (hostFragments / poolFragments) * kvBytes);
  await using server = await startTestServer({ env: { ...settings.env, ...modelEnv } });
  say(`making ${2 * count} texts of ${tokens} tokens`);
  const spanTexts = new SpanTexts();
  const texts = Array.from({ length: 2 * count }, (_, index) => spanTexts.textOf(tokens, index + 1));
  const victim = (await server.tenant("victim")).client;
  const other = (await server.tenant("other")).client;
  say("ingesting");
  const batches: TextStore[] = [];
  for (let start = 0; start < count; start += batchFragments) {
    batches.push(await ingestTexts(victim, texts.slice(start, Math.min(start + batchFragments, count)), tokens));
  }
  const own: Prober = {
    arm: { prober: "the same tenant", cachedMs: [], freshMs: [] },
    client: victim,
    cached: batches.flatMap(({ fragments }) => fragments),
    fresh: (await ingestTexts(victim, texts.slice(count), tokens)).fragments,
  };
  const others: Prober = {
    arm: { prober: "another tenant", cachedMs: [], freshMs: [] },
    client: other,
    cached: (await ingestTexts(other, texts.slice(0, count), tokens)).fragments,
    fresh: (await ingestTexts(other, texts.slice(count), tokens)).fragments,
  };
  let fromTier = 0;
  for (let index = 0; index < count; index++) {
    const batch = index % batchFragments === 0 ? batches[index / batchFragments] : undefined;
    if (batch !== undefined) {
      say(`sample ${index} of ${count}`);
      await prepareStore(victim, batch.id, () => undefined, tier);
    }
    for (const prober of [others, own]) {
      const source = await sample(prober, index, index >= warmUpSamples);
      if (prober === own && index >= warmUpSamples && source === tier) fromTier += 1;
    }
  }
  return { model: server.model, arms: [others.arm, own.arm], fromTier: fromTier / samples };
}

/** Asks for the fragments of this index in random order. @returns where the KV of the cached text came from */
async function sample({ arm, client, cached, fresh }: Prober, index: number, counts: boolean) {
  const cachedFirst = Math.random() < 0.5;
  let cachedSource: string | undefined;
  for (const isCached of [cachedFirst, !cachedFirst]) {
    const { ms, source } = await ask(client, (isCached ? cached : fresh)[index] ?? "");
    if (isCached) cachedSource = source;
    if (counts) (isCached ? arm.cachedMs : arm.freshMs).push(ms);
  }
  return cachedSource;
}

/** Milliseconds of an answer of one token over the fragment, as a client sees it, and where its KV came from. */
async function ask(client: HttpClient, fragment: string): Promise<{ readonly ms: number; readonly source?: string }> {
  const beganMs = performance.now();
  const { sources } = await askFragments(client, [fragment], { user: "What is it about?" }, 1);
  const [source] = sources;
  return { ms: performance.now() - beganMs, ...(source !== undefined && { source }) };
}
