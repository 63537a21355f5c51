/**
 * Prepare jobs: every fragment of a corpus is computed and kept ahead of use. Jobs are rows. A job that a stopped
 * server left is run again from its first fragment: what is in memory was lost with the workers, and what is in files is
 * found.
 */
import { countFragments } from "../../../db/fragments.ts";
import { type JobId, newId, parseId, type TenantId } from "../../../db/ids.ts";
import {
  countOpenJobs,
  findJob,
  findOpenJob,
  insertJob,
  type JobRow,
  listJobTenants,
  updateOpenJob,
} from "../../../db/jobs.ts";
import type { KvTier } from "../../../worker/contract/tiers.ts";
import { TenantRounds } from "../../background/tenant-rounds.ts";
import { ApiError } from "../../base/errors.ts";
import { corpusLimits } from "../base/limits.ts";
import type { SpanPort } from "../base/ports.ts";
import { type JobOwner, JobWatchers } from "./job-watchers.ts";
import { type PrepareDeps, TenantPrepare } from "./prepare-work.ts";

/** Groups of fragments that are computed at the same time, and additional groups for tenants of which none runs. */
const groupsAtOnce = 4;
const spareGroups = 12;
/** The most tenants whose jobs run at the same time, in rounds. */
const maxTenants = 1_024;

/** What gives a server its tiers. */
const settingOf = {
  device: "SPANGATE_DEVICES",
  host: "SPANGATE_KV_HOST_BYTES, beside a GPU,",
  disk: "SPANGATE_KV_DISK_BYTES",
  s3: "SPANGATE_KV_S3",
} as const satisfies Readonly<Record<KvTier, string>>;

/** @throws ApiError invalid_value naming the field and the setting, when this server does not have the tier */
export function requireTier({ tiers }: SpanPort, tier: KvTier, param: string): void {
  if (tiers.includes(tier)) return;
  const has = tiers.map((name) => `"${name}"`).join(" and ");
  const message = `This server keeps no KV in "${tier}": it has ${has}. ${settingOf[tier]} gives it that tier.`;
  throw new ApiError("invalid_value", { param, message });
}

export class PrepareService {
  readonly watchers = new JobWatchers();
  readonly #deps: Omit<PrepareDeps, "watchers">;
  readonly #rounds: TenantRounds;
  /** The tenants whose jobs run. */
  readonly #tenants = new Map<TenantId, TenantPrepare>();

  constructor(deps: Omit<PrepareDeps, "watchers">) {
    this.#deps = deps;
    this.#rounds = new TenantRounds({
      ...{ name: "preparing", log: deps.log, maxOpen: maxTenants },
      ...{ lanes: groupsAtOnce, spareLanes: spareGroups, slicesPerTenant: 1 },
      open: (tenantId) => this.#open(tenantId),
    });
  }

  /** Takes up the jobs that a stopped server left. */
  start(): void {
    for (const tenantId of listJobTenants(this.#deps.db)) this.#rounds.offer(tenantId);
  }

  idle(): Promise<void> {
    return this.#rounds.idle();
  }

  /** Stops. Running jobs keep their state for the next start. */
  async stop(): Promise<void> {
    for (const tenant of this.#tenants.values()) tenant.abort(() => true);
    await this.#rounds.stop();
  }

  /**
   * Makes a job. If the corpus has an open job with this target, that one is returned, so the call may be repeated.
   * @throws ApiError not_found, quota_exceeded, invalid_value
   */
  create(tenantId: TenantId, rawCorpusId: string, target?: KvTier): JobRow {
    const corpus = this.#deps.corpora.require(tenantId, rawCorpusId, "own");
    if (target !== undefined) requireTier(this.#deps.spans, target, "target");
    const open = findOpenJob(this.#deps.db, corpus.id, target ?? null);
    if (open !== undefined) return open;
    if (countOpenJobs(this.#deps.db, tenantId) >= corpusLimits.maxOpenJobsPerTenant) {
      throw new ApiError("quota_exceeded", { message: "Too many prepare jobs of this tenant are open." });
    }
    const total = countFragments(this.#deps.db, corpus.id);
    const job = insertJob(this.#deps.db, {
      id: newId("job"),
      tenantId,
      corpusId: corpus.id,
      target: target ?? null,
      total,
      createdAt: Date.now(),
    });
    this.#rounds.offer(tenantId);
    return job;
  }

  /** @throws ApiError not_found */
  get(tenantId: TenantId, rawId: string): JobRow {
    const id = parseId("job", rawId);
    const job = id === undefined ? undefined : findJob(this.#deps.db, tenantId, id);
    if (job === undefined) throw new ApiError("not_found");
    return job;
  }

  /** Ends an open job. A job that has ended stays as it is. @throws ApiError not_found */
  cancel(tenantId: TenantId, rawId: string): JobRow {
    const job = this.get(tenantId, rawId);
    const cancelled = updateOpenJob(this.#deps.db, job.id, { status: "cancelled", finishedAt: Date.now() });
    if (cancelled !== undefined) this.watchers.publish(cancelled);
    this.#abort((open) => open.id === job.id);
    return this.get(tenantId, rawId);
  }

  /**
   * Call for jobs that were cancelled because their corpus was deleted: running ones stop, and their followers are
   * ended.
   */
  abandon(concerns: (job: JobOwner) => boolean): void {
    this.#abort(concerns);
    this.watchers.end(concerns);
  }

  #abort(concerns: (job: JobOwner & { readonly id: JobId }) => boolean): void {
    for (const [tenantId, tenant] of this.#tenants) {
      tenant.abort(concerns);
      this.#rounds.offer(tenantId);
    }
  }

  #open(tenantId: TenantId): TenantPrepare {
    const work = new TenantPrepare({ ...this.#deps, watchers: this.watchers }, tenantId, () => {
      this.#tenants.delete(tenantId);
    });
    this.#tenants.set(tenantId, work);
    return work;
  }
}
