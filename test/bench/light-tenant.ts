/**
 * A tenant at one request a second beside one that sends as much as 250 open requests allow, a hundred a second at most:
 * its times and its hit rate. See test/chaos.
 */
import { CommandError } from "../../gateway/cli/support/command.ts";
import { heavyAtOnce, hitRate, type LightAnswer, lightBesideHeavy } from "../chaos/light-tenant.ts";
import { atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { figure, quantile } from "./support/stats.ts";

const defaultRequests = 200;
const times = 100;

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const requests = Number(option("requests") ?? defaultRequests);
  if (!Number.isInteger(requests) || requests < 10) throw new CommandError("--requests is a whole number, 10 or more");
  const { model, alone, beside, heavy } = await lightBesideHeavy({ requests, requestMs: 1_000, times, say });
  const ttft = (answers: readonly LightAnswer[], q: number): number =>
    quantile(
      answers.map(({ ttftMs }) => ttftMs),
      q,
    );
  const statuses = [...heavy].map(
    ([status, count]) => `${count} ${status === "not sent" ? status : `status ${status}`}`,
  );
  return {
    model,
    header: ["light tenant", "TTFT p50 ms", "p90", "p99", "hit rate"],
    rows: [["alone", alone] as const, ["beside the heavy one", beside] as const].map(([name, answers]) => [
      name,
      ...[0.5, 0.9, 0.99].map((q) => figure(ttft(answers, q))),
      hitRate(answers).toFixed(3),
    ]),
    notes: [
      `${requests} requests each, one a second. The heavy tenant, ${times} times as many due: ${statuses.join(", ")}.`,
      `not sent: due while ${heavyAtOnce} were open.`,
    ],
    bars: [
      atMost("light tenant's TTFT p99 beside / alone", ttft(beside, 0.99) / ttft(alone, 0.99), 2),
      atMost("points of hit rate lost", 100 * (hitRate(alone) - hitRate(beside)), 5),
    ],
    details: { heavy: Object.fromEntries(heavy) },
  };
}

export const lightTenantBench: Bench = {
  name: "light-tenant",
  summary: "TTFT and hit rate of a tenant at one request a second beside one that keeps up to 250 requests open",
  options: { requests: `N  requests in each part, one a second (default ${defaultRequests})` },
  run,
};
