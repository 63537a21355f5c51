/**
 * What times tell of KV that is outside the pool. The victim's fragments are prepared, and the pool has room for a few of
 * them only, so that the others are in the tier alone. Both tenants have two vector stores of the same texts; of these
 * four, one of the victim's is prepared. Every fragment is asked for once.
 */
import type { HttpClient } from "../../../gateway/cli/support/client.ts";
import { prepareStore } from "../../../gateway/cli/support/operations.ts";
import { startTestServer } from "../../support/server.ts";
import { askFragments, ingestTexts } from "./fragment-store.ts";
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

/** Fragments that the pool has room for. Those that are prepared last are asked for last, when they have left it. */
const poolFragments = 64;
export async function probeFragments(options: TierProbeOptions): Promise<TierProbe> {
  const { tier, samples, warmUpSamples, tokens, say } = options;
  const count = samples + warmUpSamples;
  const { kvBytes } = await poolOf(poolFragments * tokens);
  using settings = openTiers([tier], kvBytes);
  await using server = await startTestServer({ env: settings.env });
  const spanTexts = new SpanTexts();
  say(`making ${2 * count} texts of ${tokens} tokens`);
  const texts = Array.from({ length: 2 * count }, (_, index) => spanTexts.textOf(tokens, index + 1));
  const victim = (await server.tenant("victim")).client;
  const other = (await server.tenant("other")).client;
  const proberOf = async (prober: TierArm["prober"], client: HttpClient, isVictim: boolean): Promise<Prober> => {
    say(`ingesting, ${prober}`);
    const cached = await ingestTexts(client, texts.slice(0, count), tokens);
    if (isVictim) say(`preparing ${count} fragments`);
    if (isVictim) await prepareStore(client, cached.id, () => undefined, tier);
    const fresh = await ingestTexts(client, texts.slice(count), tokens);
    const arm = { prober, cachedMs: [], freshMs: [] };
    return { arm, client, cached: cached.fragments, fresh: fresh.fragments };
  };
  const own = await proberOf("the same tenant", victim, true);
  const probers = [await proberOf("another tenant", other, false), own];
  let fromTier = 0;
  for (let index = 0; index < count; index++) {
    if (index % 100 === 0) say(`sample ${index} of ${count}`);
    for (const prober of probers) {
      const cachedFirst = Math.random() < 0.5;
      for (const isCached of [cachedFirst, !cachedFirst]) {
        const fragment = (isCached ? prober.cached : prober.fresh)[index] ?? "";
        const { ms, source } = await ask(prober.client, fragment);
        if (index < warmUpSamples) continue;
        (isCached ? prober.arm.cachedMs : prober.arm.freshMs).push(ms);
        if (isCached && prober === own && source === tier) fromTier += 1;
      }
    }
  }
  return { model: server.model, arms: probers.map(({ arm }) => arm), fromTier: fromTier / samples };
}

/** Milliseconds of an answer of one token over the fragment, as a client sees it, and where its KV came from. */
async function ask(client: HttpClient, fragment: string): Promise<{ readonly ms: number; readonly source?: string }> {
  const beganMs = performance.now();
  const { sources } = await askFragments(client, [fragment], { user: "What is it about?" }, 1);
  const [source] = sources;
  return { ms: performance.now() - beganMs, ...(source !== undefined && { source }) };
}
