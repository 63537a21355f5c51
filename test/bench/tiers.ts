/**
 * Time to the first token over prepared fragments, by where their KV is: in the pool, in a file, in a bucket, in the
 * host's memory beside a GPU; against computing them. All through HTTP, in turn in one server whose pool holds little
 * more than the largest prompt: what other questions read meanwhile pushes a store's KV out of it. The bucket is in
 * this process, so that no network is in its times. A server that finds computing cheaper than loading computes, and
 * that too has to be no slower than computing without reuse.
 */
import type { ChatAnswer } from "../../gateway/cli/support/operations.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { atLeast, atMost, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { type FragmentStore, makeFragmentStore, StoreAsker } from "./support/fragment-store.ts";
import { kvOption, kvSettings } from "./support/kv.ts";
import { cameFrom, type FarTier, leaveInBucket, openTiers, tierOf } from "./support/kv-tiers.ts";
import { SpanTexts } from "./support/prompts.ts";
import { figure, median } from "./support/stats.ts";
import { poolOf } from "./support/worker-stats.ts";

const fragmentCounts = [1, 4, 8, 16, 32];
const fragmentTokenCounts = [128, 512];
/** Besides the largest prompt, of 32 fragments of 512 tokens: its question and answer. */
const poolTokens = 32 * 512 + 1_024;
const defaultRounds = 10;
const slowestShare = 1.05;
const leastGain = 15;

/** Where KV is when a question is asked; "computed": it is not used. */
type Arm = "computed" | "device" | FarTier;

interface Cell {
  readonly store: FragmentStore;
  readonly answers: Map<Arm, ChatAnswer[]>;
}

const nameOf = ({ store: { fragments, tokens } }: Cell): string => `${fragments} x ${tokens}`;
const answersOf = (cell: Cell, arm: Arm): readonly ChatAnswer[] => cell.answers.get(arm) ?? [];
const ttftOf = (cell: Cell, arm: Arm): number => median(answersOf(cell, arm).map(({ clientTtftMs }) => clientTtftMs));

/** Of the arm's fragments, the share that came from there. What came from the bucket has come through the folder. */
function shareOf(cell: Cell, arm: FarTier): number {
  const spans = answersOf(cell, arm).flatMap(({ spangate }) => spangate.spans);
  const came = spans.filter(({ source }) => cameFrom(arm, source));
  return came.length / spans.length;
}

/**
 * The first answer over a store takes up to a sixth longer than the next ones, whatever it finds, so computing comes
 * first in every second round. What the tier brings is in the pool afterwards, so it comes before the pool.
 */
function armsOf(tier: FarTier, round: number): readonly Arm[] {
  return round % 2 === 0 ? [tier, "device", "computed"] : ["computed", tier, "device"];
}

async function measure(server: TestServer, tiers: readonly FarTier[], rounds: number, say: BenchContext["say"]) {
  const { client, apiKey, id: tenantId } = await server.tenant("bench");
  const asker = new StoreAsker(apiKey);
  const texts = new SpanTexts();
  const cells: Cell[] = [];
  let smallest: FragmentStore | undefined;
  for (const tokens of fragmentTokenCounts) {
    for (const count of fragmentCounts) {
      say(`preparing ${count} x ${tokens}`);
      const store = await makeFragmentStore(client, texts, count, tokens);
      smallest ??= store;
      cells.push({ store, answers: new Map() });
    }
  }
  // What is in the bucket alone comes back only where that is sooner than computing, so files are asked for before.
  for (const tier of tiers) {
    // The first round is not counted.
    for (let round = 0; round <= rounds; round++) {
      say(`round ${round} of ${rounds}, ${tier}`);
      if (tier === "s3") await leaveInBucket(server, tenantId);
      // Nobody's first question after a pause is compared with another's third.
      for (let i = 0; i < 3 && smallest !== undefined; i++) await asker.ask(server, smallest, false);
      for (const { store, answers } of cells) {
        for (const arm of armsOf(tier, round)) {
          const answer = await asker.ask(server, store, arm !== "computed");
          if (round > 0) answers.getOrInsertComputed(arm, () => []).push(answer);
        }
      }
    }
  }
  return cells;
}

function barsOf(cell: Cell, tiers: readonly FarTier[]): Bar[] {
  const computedMs = ttftOf(cell, "computed");
  const bars = (["device", ...tiers] as const).map((arm) =>
    atMost(`ttft from ${arm} / computed, ${nameOf(cell)}`, ttftOf(cell, arm) / computedMs, slowestShare),
  );
  const isLargest = cell.store.fragments === 32 && cell.store.tokens === 512;
  if (isLargest && tiers.includes("disk")) {
    bars.push(atLeast(`ttft computed / from disk, ${nameOf(cell)}`, computedMs / ttftOf(cell, "disk"), leastGain));
  }
  return bars;
}

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const tiers = (option("tiers") ?? "disk,s3").split(",").map(tierOf);
  const rounds = Number(option("rounds") ?? defaultRounds);
  const kv = option("kv");
  const { kvBytes } = await poolOf(poolTokens, { env: kvSettings(kv) });
  using settings = openTiers(tiers, kvBytes);
  await using server = await startTestServer({ env: { ...settings.env, ...kvSettings(kv) } });
  const cells = await measure(server, tiers, rounds, say);
  const arms = ["computed", "device", ...tiers] as const;
  return {
    model: `${server.model}${kv === undefined ? "" : ` (KV ${kv})`}`,
    header: ["fragments", ...arms.map((arm) => `${arm} ms`), ...tiers.map((tier) => `from ${tier}`)],
    rows: cells.map((cell) => [
      nameOf(cell),
      ...arms.map((arm) => figure(ttftOf(cell, arm))),
      ...tiers.map((tier) => `${Math.round(100 * shareOf(cell, tier))} %`),
    ]),
    notes: [
      `Medians of ${rounds} rounds (computed and device: ${rounds * tiers.length}). The last columns: of the fragments, how many came from there.`,
    ],
    bars: cells.flatMap((cell) => barsOf(cell, tiers)),
    details: {
      rounds,
      cells: cells.map((cell) => ({
        fragments: nameOf(cell),
        ttftMs: Object.fromEntries(arms.map((arm) => [arm, ttftOf(cell, arm)])),
        share: Object.fromEntries(tiers.map((tier) => [tier, shareOf(cell, tier)])),
      })),
    },
  };
}

export const tiersBench: Bench = {
  name: "tiers",
  summary:
    "TTFT over prepared fragments by where their KV is (pool, files, bucket, the host's memory), against computing",
  options: {
    tiers: "LIST  of host, disk, s3 (default disk,s3)",
    rounds: `N  (default ${defaultRounds})`,
    kv: kvOption,
  },
  run,
};
