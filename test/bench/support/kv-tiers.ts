/** Servers whose KV is found outside the pool, and how KV comes to be there alone. */
import { CommandError } from "../../../gateway/cli/support/command.ts";
import { type Bucket, openBucket } from "../../support/bucket.ts";
import { startRadosgw } from "../../support/radosgw.ts";
import type { TestServer } from "../../support/server.ts";
import { until } from "../../support/until.ts";

const farTiers = ["host", "disk", "s3"] as const;
export type FarTier = (typeof farTiers)[number];

/** @throws CommandError for a tier that there is not, or not on this machine */
export function tierOf(name: string): FarTier {
  const tier = farTiers.find((known) => known === name);
  if (tier === undefined) throw new CommandError(`there is no tier "${name}" but ${farTiers.join(", ")}`);
  if (tier === "host" && !/\bcuda\b/.test(process.env.SPANGATE_DEVICES ?? "")) {
    throw new CommandError('the tier "host" is beside GPUs alone, and SPANGATE_DEVICES names none');
  }
  return tier;
}

export interface TierSettings extends Disposable {
  readonly env: Readonly<Record<string, string>>;
}

const defaultHostBytes = 8 * 2 ** 30;

/** Settings of a server that has these tiers beside its pool; for "s3" with a bucket in memory, in this process. */
export function openTiers(tiers: readonly FarTier[], kvBytes: number, hostBytes = defaultHostBytes): TierSettings {
  const bucket: Bucket | undefined = tiers.includes("s3") ? openBucket() : undefined;
  return {
    env: {
      SPANGATE_KV_BYTES: String(kvBytes),
      SPANGATE_KV_DISK_BYTES: tiers.includes("disk") || bucket !== undefined ? "auto" : "0",
      ...(tiers.includes("host") && { SPANGATE_KV_HOST_BYTES: String(hostBytes) }),
      ...(bucket !== undefined && {
        SPANGATE_KV_S3: "s3://papers/kv",
        SPANGATE_KV_S3_ENDPOINT: bucket.endpoint,
        AWS_ACCESS_KEY_ID: "reader",
        AWS_SECRET_ACCESS_KEY: "secret",
      }),
    },
    [Symbol.dispose]: () => void bucket?.stop(),
  };
}

/** A bucket of copies of KV files, and what lies in it by the files' names. */
export interface KvBucket extends AsyncDisposable {
  readonly env: Readonly<Record<string, string>>;
  readonly names: () => Promise<readonly string[]>;
  /** What somebody who may read all of it has copied. */
  readonly copies: () => Promise<ReadonlyMap<string, Uint8Array>>;
}

const nameOf = (key: string): string => key.slice(key.lastIndexOf("/") + 1);

/** @param kind "memory": in this process; "radosgw": of Ceph's server, which is started. @throws CommandError */
export async function openKvBucket(kind: string): Promise<KvBucket> {
  const env = { AWS_ACCESS_KEY_ID: "reader", AWS_SECRET_ACCESS_KEY: "secret" };
  if (kind === "memory") {
    const { endpoint, objects, stop } = openBucket();
    const contents = () =>
      Object.entries(objects).map(([key, content]) => [nameOf(key), Buffer.from(content)] as const);
    return {
      env: { ...env, SPANGATE_KV_S3: "s3://papers/kv", SPANGATE_KV_S3_ENDPOINT: endpoint },
      names: async () => Object.keys(objects).map(nameOf),
      copies: async () => new Map(contents()),
      [Symbol.asyncDispose]: stop,
    };
  }
  if (kind !== "radosgw") throw new CommandError("--bucket is memory or radosgw");
  const radosgw = await startRadosgw();
  return {
    env: { ...env, SPANGATE_KV_S3: "s3://kv-files/kv", SPANGATE_KV_S3_ENDPOINT: radosgw.endpoint },
    names: async () => (await radosgw.list()).map(nameOf),
    copies: async () => {
      const copies = new Map<string, Uint8Array>();
      for (const key of await radosgw.list()) copies.set(nameOf(key), await radosgw.read(key));
      return copies;
    },
    [Symbol.asyncDispose]: () => radosgw[Symbol.asyncDispose](),
  };
}

interface TierRow {
  readonly tier: string;
  readonly objects?: number;
}

const objectsIn = async ({ admin }: TestServer, tier: FarTier): Promise<number> => {
  const { tiers } = await admin.json<{ tiers: TierRow[] }>("GET", "/admin/v1/cache");
  return tiers.find((row) => row.tier === tier)?.objects ?? 0;
};

/** Whether a span came from the tier: what a bucket has comes by the folder, which `leaveInBucket` leaves empty. */
export const cameFrom = (tier: string, source: string): boolean =>
  source === tier || (tier === "s3" && source === "disk");

/** Waits until the bucket has a copy of so many files, and takes the tenant's files out of the folder. */
export async function leaveInBucket(server: TestServer, tenantId: string): Promise<void> {
  const count = Math.max(await objectsIn(server, "disk"), await objectsIn(server, "s3"));
  await until(async () => (await objectsIn(server, "s3")) >= count, "the bucket has all files", 120_000, 200);
  const limits = `/admin/v1/tenants/${tenantId}/limits`;
  await server.admin.json("PUT", limits, { kv_disk_bytes: 1 });
  await until(async () => (await objectsIn(server, "disk")) === 0, "the folder is empty");
  await server.admin.json("PUT", limits, {});
}
