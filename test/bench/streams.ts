/** Thousands of streams at the same time, every one of which gets tokens while all are open. See test/chaos. */
import { CommandError } from "../../gateway/cli/support/command.ts";
import { mostStreams, openStreams } from "../chaos/streams.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { figure, quantile } from "./support/stats.ts";

const [defaultStreams, defaultRounds] = [2_000, 3];
/** Long enough that none has ended when the last is opened. */
const answerTokens = 128;
const mebibyte = 2 ** 20;

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  if (process.platform !== "linux") throw new CommandError("this benchmark reads /proc, which only Linux has");
  const [streams, count] = [Number(option("streams") ?? defaultStreams), Number(option("rounds") ?? defaultRounds)];
  if (!(streams >= 1 && streams <= mostStreams)) throw new CommandError(`--streams is 1 to ${mostStreams}`);
  if (!(count >= 1)) throw new CommandError("--rounds is 1 or more");
  const { model, before, rounds, faults } = await openStreams({ streams, rounds: count, answerTokens, say });
  const last = rounds.at(-1)?.cost ?? before;
  return {
    model,
    header: [
      "round",
      "open at once",
      "seconds",
      "tokens/s",
      "gap p50 ms",
      "p99",
      "longest",
      "resident MiB",
      "descriptors",
    ],
    rows: rounds.map((round, index) => {
      const gaps = round.streams.map(({ gapMs }) => gapMs);
      return [
        String(index + 1),
        String(round.mostOpen),
        figure(round.seconds),
        figure((streams * answerTokens) / round.seconds),
        ...[0.5, 0.99, 1].map((q) => figure(quantile(gaps, q))),
        figure(round.cost.residentBytes / mebibyte),
        String(round.cost.descriptors),
      ];
    }),
    notes: [
      `${streams} streams of ${answerTokens} tokens; before them ${figure(before.residentBytes / mebibyte)} MiB resident`,
      `and ${before.descriptors} descriptors. The gap is each stream's longest. Clients and workers share the cores.`,
      ...[...new Set(faults)].slice(0, 5),
    ],
    bars: [
      atLeast("streams open at the same time", Math.min(...rounds.map(({ mostOpen }) => mostOpen)), streams),
      atMost("streams without their whole answer", faults.length, 0),
      atMost("gateway's resident memory at its peak, MB", last.peakBytes / 1e6, 400),
      atMost("descriptors more than before", last.descriptors - before.descriptors, 0),
    ],
    details: { rounds: rounds.map(({ mostOpen, seconds, cost }) => ({ mostOpen, seconds, ...cost })) },
  };
}

export const streamsBench: Bench = {
  name: "streams",
  summary: "Thousands of streams at the same time: errors, the gateway's memory and descriptors",
  options: {
    streams: `N  streams at the same time (default ${defaultStreams})`,
    rounds: `N  times over (default ${defaultRounds})`,
  },
  run,
};
