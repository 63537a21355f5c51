/** Metrics of KV outside the pools, under the names that vLLM's offloading and LMCache use, so that dashboards know them. */
import type { TierStats } from "../../../worker/contract/messages.ts";
import type { KvTier } from "../../../worker/contract/tiers.ts";
import type { WorkerRecord } from "../../dispatch/workers/registry.ts";
import { type Labels, renderSamples } from "../../telemetry/metrics.ts";

/** What lies in a tier now. */
export interface TierBytes {
  readonly tier: KvTier;
  /** The worker that the tier belongs to; undefined: all workers share it. */
  readonly worker?: string;
  readonly bytes: number;
}

/** LMCache's names of the places: memory of the host, the disk, what is far away. */
const usageNames = {
  host: ["lmcache:local_cache_usage", "Bytes of KV in memory beside the device."],
  disk: ["lmcache:local_storage_usage", "Bytes of KV in files."],
  s3: ["lmcache:remote_cache_usage", "Bytes of KV in a bucket."],
} as const;

type Sample = readonly [labels: Labels, value: number];
type Row = readonly [name: string, help: string, read: (stats: TierStats) => readonly Sample[]];

const inTier = (read: (stats: TierStats) => number) => (stats: TierStats) =>
  [[{ tier: stats.tier }, read(stats)]] as const;

/** The two ways between the pool and a tier. */
const bothWays = (out: (stats: TierStats) => number, back: (stats: TierStats) => number) => (stats: TierStats) =>
  [
    [{ transfer_type: `device_to_${stats.tier}` }, out(stats)],
    [{ transfer_type: `${stats.tier}_to_device` }, back(stats)],
  ] as const;

const readBytes = ({ readBytes }: TierStats): number => readBytes;
const writtenBytes = ({ writtenBytes }: TierStats): number => writtenBytes;
const readS = ({ readMs }: TierStats): number => readMs / 1_000;
const writeS = ({ writeMs }: TierStats): number => writeMs / 1_000;

const rows: readonly Row[] = [
  ["vllm:kv_offload_total_bytes_total", "Bytes of KV moved, by the way they went.", bothWays(writtenBytes, readBytes)],
  ["vllm:kv_offload_total_time_total", "Seconds that moving KV took, by the way it went.", bothWays(writeS, readS)],
  ["vllm:kv_offload_tiering_read_bytes_total", "Bytes of KV brought from a tier.", inTier(readBytes)],
  ["vllm:kv_offload_tiering_read_time_total", "Seconds that bringing KV from a tier took.", inTier(readS)],
  ["vllm:kv_offload_tiering_write_bytes_total", "Bytes of KV written to a tier.", inTier(writtenBytes)],
  ["vllm:kv_offload_tiering_write_time_total", "Seconds that writing KV to a tier took.", inTier(writeS)],
  [
    "spangate_kv_loads_total",
    "What came of bringing KV objects from a tier.",
    ({ tier, loads }) => Object.entries(loads).map(([outcome, count]) => [{ tier, outcome }, count]),
  ],
];

/**
 * @param inUse what lies in tiers beside the workers' pools
 * @param labelsOf labels that all series of a metric have
 */
export function tierMetrics(
  workers: readonly WorkerRecord[],
  inUse: readonly TierBytes[],
  labelsOf: (name: string) => Labels,
): string {
  const moved = rows.map(([name, help, read]) => {
    const samples = workers.flatMap(({ id, stats }) =>
      (stats?.tiers ?? []).flatMap((tier) =>
        read(tier).map(([labels, value]) => ({ labels: { ...labelsOf(name), worker: id, ...labels }, value })),
      ),
    );
    return renderSamples(name, "counter", help, samples);
  });
  const used = Object.entries(usageNames).map(([tier, [name, help]]) => {
    const samples = inUse
      .filter((use) => use.tier === tier)
      .map(({ worker, bytes }) => ({ labels: { ...labelsOf(name), ...(worker && { worker }) }, value: bytes }));
    return renderSamples(name, "gauge", help, samples);
  });
  return [...moved, ...used].join("");
}
