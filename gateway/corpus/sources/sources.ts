/**
 * Stored sources: web sites and buckets that the server reads into a vector store, when it is asked to and at
 * intervals. When each is due stands in the database, so a start goes on where a stopped server was: a run that was cut
 * off is begun anew, and what it had brought is known. Tenants take turns, each with one source at a time.
 */
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { newId, parseId, type SourceId, type TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import type { Page, PageRange } from "../../../db/page.ts";
import type { SourceOptions, SourceRun } from "../../../db/schema.ts";
import {
  countSources,
  findSource,
  insertSource,
  listDueSourceTenants,
  listSources,
  nextDueSource,
  nextSourceTime,
  removeSource,
  type SourceRow,
  updateSource,
} from "../../../db/sources.ts";
import { reasonOf } from "../../background/background-loop.ts";
import { DueLoop } from "../../background/due-loop.ts";
import { TenantRounds, type TenantWork } from "../../background/tenant-rounds.ts";
import { ApiError } from "../../base/errors.ts";
import { onAbort } from "../../base/hold.ts";
import type { Log } from "../../base/log.ts";
import type { GatherJob } from "../../sources/protocol.ts";
import { defaultLabel, FetchError, isRemote, isS3, s3SourceOf } from "../../sources/source-url.ts";
import { countsOf, runSync } from "../../sources/sync-run.ts";
import type { CorpusService } from "../base/corpora.ts";
import { corpusLimits } from "../base/limits.ts";
import type { SealerPort, StoragePort } from "../base/ports.ts";
import { planApart, SourceError } from "./gather-process.ts";
import { OwnStore, type StoreServices } from "./store-files.ts";

export interface SourceDeps extends StoreServices {
  readonly db: Db;
  readonly corpora: CorpusService;
  readonly storage: StoragePort;
  readonly sealer: SealerPort;
  /** Where uploads lie, by their ids, and where runs may put what they fetch. */
  readonly uploads: string;
  readonly folder: string;
  readonly networks: readonly string[];
  readonly nowMs: () => number;
  readonly log: Log;
}

export interface NewSource {
  readonly url: string;
  /** undefined: by its URL. */
  readonly label: string | undefined;
  readonly intervalMinutes: number | null;
  readonly options: SourceOptions;
  /** With the access key's id in the options. */
  readonly secretAccessKey: string | undefined;
}

export type SourceStatus = "idle" | "queued" | "in_progress";

/** Sources that are read at the same time, each of another tenant. */
const sourcesAtOnce = 4;
const maxOpen = 64;
const msPerMinute = 60_000;
const maxLabelChars = 512;

export class SourceService {
  readonly #deps: SourceDeps;
  readonly #rounds: TenantRounds;
  /** The sources that are being read, each with the controller that aborts it. */
  readonly #running = new Map<SourceId, { readonly row: SourceRow; readonly ending: AbortController }>();
  readonly #due: DueLoop;

  constructor(deps: SourceDeps) {
    this.#deps = deps;
    this.#rounds = new TenantRounds({
      ...{ name: "reading sources", log: deps.log, lanes: sourcesAtOnce, slicesPerTenant: 1, maxOpen },
      open: (tenantId) => this.#open(tenantId),
    });
    const { db, nowMs, log } = deps;
    this.#due = new DueLoop({ name: "sources that are due", log, db, nowMs, work: async () => this.#offerDue() });
  }

  /** Call once, before the first run: what a killed server's runs had fetched is removed. */
  async start(): Promise<void> {
    await rm(this.#deps.folder, { recursive: true, force: true });
    this.#due.wake();
  }

  async idle(): Promise<void> {
    await this.#due.idle();
    await this.#rounds.idle();
    await this.#due.idle();
  }

  /** Runs that are cut off are begun anew by the next start. */
  async stop(): Promise<void> {
    await Promise.all([this.#due.stop(), this.#rounds.stop()]);
  }

  /** @throws ApiError not_found, invalid_value, conflict (the store has a source of this name), quota_exceeded */
  create(tenantId: TenantId, rawCorpusId: string, source: NewSource): SourceRow {
    const { db, corpora, sealer, nowMs } = this.#deps;
    const corpus = corpora.require(tenantId, rawCorpusId, "own");
    const { intervalMinutes, options, secretAccessKey } = source;
    checkSource(source);
    const url = isS3(source.url) ? source.url : new URL(source.url).href;
    const label = source.label ?? defaultLabel(url);
    if (label.length > maxLabelChars) throw invalid("name", "It needs a name of its own: its URL is too long for one.");
    if (countSources(db, tenantId) >= corpusLimits.maxSourcesPerTenant) {
      const message = `A tenant can have at most ${corpusLimits.maxSourcesPerTenant} sources.`;
      throw new ApiError("quota_exceeded", { message });
    }
    const id = newId("source");
    const sealedKey = secretAccessKey === undefined ? null : sealer.seal(secretAccessKey, id);
    const own = { id, tenantId, corpusId: corpus.id, url, label, options, sealedKey, intervalMinutes };
    const row = insertSource(db, { ...own, nextRunAt: nowMs(), createdAt: nowMs() });
    if (row === "gone") throw new ApiError("not_found");
    if (row === "taken") {
      throw new ApiError("conflict", { param: "name", message: `The vector store has a source named "${label}".` });
    }
    this.#due.wake();
    return row;
  }

  /** @throws ApiError not_found */
  list(tenantId: TenantId, rawCorpusId: string, range: PageRange): Page<SourceRow> {
    return listSources(this.#deps.db, this.#deps.corpora.require(tenantId, rawCorpusId, "own").id, range);
  }

  /** @throws ApiError not_found */
  get(tenantId: TenantId, rawId: string): SourceRow {
    const id = parseId("source", rawId);
    const row = id === undefined ? undefined : findSource(this.#deps.db, tenantId, id);
    if (row === undefined) throw new ApiError("not_found");
    return row;
  }

  statusOf({ id, nextRunAt }: SourceRow): SourceStatus {
    if (this.#running.has(id)) return "in_progress";
    return nextRunAt !== null && nextRunAt <= this.#deps.nowMs() ? "queued" : "idle";
  }

  /** Has the source read as soon as it is its tenant's turn, unless it is being read. @throws ApiError not_found */
  run(tenantId: TenantId, rawId: string): SourceRow {
    const row = this.get(tenantId, rawId);
    if (this.statusOf(row) !== "idle") return row;
    const queued = updateSource(this.#deps.db, row.id, { nextRunAt: this.#deps.nowMs() });
    this.#due.wake();
    return queued ?? row;
  }

  /** Forgets the source, and ends its run. Its files stay in the vector store. @throws ApiError not_found */
  remove(tenantId: TenantId, rawId: string): SourceId {
    const { id } = this.get(tenantId, rawId);
    removeSource(this.#deps.db, id);
    this.recheck();
    return id;
  }

  /** Call when sources may be gone, with their vector store or their tenant: their runs are ended. */
  recheck(): void {
    for (const { row, ending } of this.#running.values()) {
      if (findSource(this.#deps.db, row.tenantId, row.id) === undefined) ending.abort();
    }
  }

  /** @returns when the next source is due */
  #offerDue(): number | undefined {
    const { db, nowMs } = this.#deps;
    const now = nowMs();
    for (const tenantId of listDueSourceTenants(db, now)) this.#rounds.offer(tenantId);
    return nextSourceTime(db, now);
  }

  #open(tenantId: TenantId): TenantWork | undefined {
    const next = (): SourceRow | undefined => nextDueSource(this.#deps.db, tenantId, this.#deps.nowMs());
    if (next() === undefined) return undefined;
    return {
      runSlice: async (stopped) => {
        const row = next();
        if (row !== undefined) await this.#run(row, stopped);
        if (!stopped.aborted) this.#due.wake();
        return next() !== undefined;
      },
    };
  }

  async #run(row: SourceRow, stopped: AbortSignal): Promise<void> {
    const { db, nowMs, log } = this.#deps;
    const ending = new AbortController();
    using _listener = onAbort(stopped, () => ending.abort());
    this.#running.set(row.id, { row, ending });
    const startedAt = nowMs();
    try {
      const outcome = await this.#read(row, ending.signal).catch((error: unknown) => {
        const isKnown = error instanceof SourceError || error instanceof ApiError || ending.signal.aborted;
        if (!isKnown) log("error", "reading a source failed", { sourceId: row.id, reason: reasonOf(error) });
        return {
          ...nothing,
          error: isKnown && error instanceof Error ? short(error.message) : "The server had an error.",
        };
      });
      if (ending.signal.aborted) return;
      const endedAt = nowMs();
      const nextRunAt = row.intervalMinutes === null ? null : endedAt + row.intervalMinutes * msPerMinute;
      updateSource(db, row.id, { lastRun: { ...outcome, startedAt, endedAt }, nextRunAt });
    } finally {
      this.#running.delete(row.id);
    }
  }

  async #read(row: SourceRow, signal: AbortSignal): Promise<Omit<SourceRun, "startedAt" | "endedAt">> {
    const { corpora, storage, folder: folders } = this.#deps;
    const corpus = corpora.require(row.tenantId, row.corpusId, "own");
    storage.checkDisk(corpusLimits.maxSourceBytes);
    const store = new OwnStore(this.#deps, corpus, signal);
    await mkdir(folders, { recursive: true, mode: 0o700 });
    const folder = await mkdtemp(join(folders, "run-"));
    try {
      const job = this.#jobOf(row, folder);
      const { plan, failed, isWhole, unchanged } = await planApart(job, store.pages(), signal);
      await runSync(store, plan, { failed, signal });
      return { ...countsOf(plan, failed), unchanged, isWhole, failures: failuresOf(failed), error: null };
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }

  #jobOf({ id, url, label, options, sealedKey }: SourceRow, folder: string): GatherJob {
    const { sealer, uploads, networks } = this.#deps;
    const { maxPages, maxDepth, s3 } = options;
    const { maxSourceFiles: maxObjects, maxSourceBytes: maxBytes, maxSourceMs: maxMs } = corpusLimits;
    const bounds = { maxPages, maxDepth, maxObjects, maxBytes, maxMs };
    const access = s3 && sealedKey ? { ...s3, secretAccessKey: sealer.open(sealedKey, id) } : undefined;
    return { label, url, ...bounds, s3: access, networks, uploads, folder };
  }
}

const short = (text: string): string => text.slice(0, corpusLimits.maxFailureChars);

function failuresOf(failed: ReadonlyMap<string, string>): SourceRun["failures"] {
  return [...failed]
    .slice(0, corpusLimits.maxSourceFailures)
    .map(([path, reason]) => ({ path: short(path), reason: short(reason) }));
}

const nothing = { added: 0, changed: 0, removed: 0, unchanged: 0, failed: 0, isWhole: false, failures: [] };

const invalid = (param: string, message: string): ApiError => new ApiError("invalid_value", { param, message });

/** @throws ApiError invalid_value */
function checkSource({ url, options }: NewSource): void {
  if (!isRemote(url) || !URL.canParse(url))
    throw invalid("url", "It must be http://…, https://… or s3://bucket/prefix.");
  checkNoPassword(url, "url");
  if (isS3(url) !== (options.s3 !== undefined)) {
    throw invalid("s3", isS3(url) ? "A bucket needs an access key." : "This belongs to s3://… alone.");
  }
  const { endpoint } = options.s3 ?? {};
  if (endpoint !== undefined) checkNoPassword(endpoint, "s3.endpoint");
  try {
    if (isS3(url)) s3SourceOf(url);
  } catch (error) {
    throw error instanceof FetchError ? invalid("url", `${error.message}.`) : error;
  }
}

function checkNoPassword(url: string, param: string): void {
  const { username, password } = new URL(url);
  if (username !== "" || password !== "") throw invalid(param, "It must not have a password in it.");
}
