/** The corpus side as a whole: wires its services and their background work. */
import { join } from "node:path";
import { findCorpusAnyState } from "../../db/corpora.ts";
import { listAllFileIds } from "../../db/files.ts";
import { visibleFragmentIds } from "../../db/fragments.ts";
import type { FragmentId, TenantId } from "../../db/ids.ts";
import { CorpusService } from "./base/corpora.ts";
import { GrantService } from "./base/grants.ts";
import type { CorpusDeps, RequestUse, UsedFragment } from "./base/ports.ts";
import { openExpiry, Sweeper } from "./deletion/sweep.ts";
import { ContentStore } from "./files/content-store.ts";
import { FileService } from "./files/files.ts";
import { UploadService } from "./files/uploads.ts";
import { CorpusFileService } from "./ingest/corpus-files.ts";
import { Ingestor } from "./ingest/ingest.ts";
import { PromptFiles } from "./ingest/prompt-files.ts";
import { Vectorizer } from "./ingest/vectorize.ts";
import { FragmentService } from "./prepare/fragments.ts";
import { PinService } from "./prepare/pins.ts";
import { PrepareService } from "./prepare/prepare.ts";
import { UsedFragments } from "./prepare/used-fragments.ts";
import { type RetrievedFragment, type RetrieveRequest, readFragments, retrieve } from "./search/retrieve.ts";
import type { Searches } from "./search/searches.ts";
import { SourceService } from "./sources/sources.ts";

export interface CorpusParts extends CorpusDeps {
  readonly searches: Searches;
}

export class Corpus {
  readonly files: FileService;
  readonly uploads: UploadService;
  readonly corpora: CorpusService;
  readonly corpusFiles: CorpusFileService;
  readonly fragments: FragmentService;
  readonly grants: GrantService;
  readonly prepare: PrepareService;
  readonly pins: PinService;
  readonly promptFiles: PromptFiles;
  readonly sources: SourceService;
  readonly #deps: CorpusParts;
  readonly #content: ContentStore;
  readonly #ingestor: Ingestor;
  readonly #sweeper: Sweeper;
  readonly #expiry: ReturnType<typeof openExpiry>;
  readonly #vectorizer: Vectorizer | undefined;
  readonly #used: UsedFragments;

  /**
   * The constructor starts nothing; see `start`. Construct before the server takes requests, because it lists the
   * stored bytes to find orphans.
   */
  constructor(deps: CorpusParts) {
    const { db, corpusSalt, spans, tokenizer, log } = deps;
    this.#deps = deps;
    this.#content = new ContentStore(join(deps.dataDir, "files"), "file");
    this.#vectorizer = deps.embedder === undefined ? undefined : new Vectorizer(db, deps.embedder, log);
    this.#ingestor = new Ingestor({
      ...{ db, content: this.#content, tokenizer, storage: deps.storage, log },
      onCompleted: (file) => this.#vectorizer?.completed(file),
    });
    this.#sweeper = new Sweeper({
      ...{ db, content: this.#content, spans, saltOf: corpusSalt, log },
      onEvicted: () => this.pins.wake(),
    });
    const expirySet = () => this.#expiry.wake();
    this.files = new FileService(db, this.#content, deps.storage, {
      expirySet,
      deleted: (tenantId, fileId) => {
        this.#ingestor.recheck();
        this.#sweeper.wake(tenantId);
        deps.onFileDeleted?.(tenantId, fileId);
      },
    });
    this.promptFiles = new PromptFiles(this.files);
    this.uploads = new UploadService({
      ...{ db, files: this.files, storage: deps.storage, nowMs: Date.now, log },
      parts: new ContentStore(join(deps.dataDir, "parts"), "uploadPart"),
      onTenantSwept: () => this.#sweeper.wakeDeletedTenants(),
    });
    this.corpora = new CorpusService(db, corpusSalt, {
      expirySet,
      deleted: ({ id: corpusId, tenantId }, salt) => {
        // The workers are told at once, before anything else that the deletion causes.
        spans.evictCorpora([salt]);
        this.prepare.abandon((job) => job.corpusId === corpusId);
        this.sources.recheck();
        this.#ingestor.recheck();
        this.#sweeper.wake(tenantId);
      },
      saltRetired: (salt) => {
        spans.evictCorpora([salt]);
        this.pins.wake();
      },
    });
    this.#expiry = openExpiry({ db, files: this.files, corpora: this.corpora, log });
    this.corpusFiles = new CorpusFileService(db, {
      attached: () => this.#ingestor.wake(),
      detached: (tenantId, deletedId) => {
        this.#ingestor.recheck();
        this.#sweeper.wake(tenantId);
        if (deletedId !== undefined) deps.onFileDeleted?.(tenantId, deletedId);
      },
      cancelled: () => this.#ingestor.recheck(),
    });
    this.fragments = new FragmentService(db, this.corpora, spans);
    this.grants = new GrantService(db, this.corpora, (salt, grantee) => spans.evictDerived(salt, grantee));
    this.prepare = new PrepareService({ db, corpora: this.corpora, spans, sweeper: this.#sweeper, log });
    this.pins = new PinService({ db, corpora: this.corpora, fragments: this.fragments, spans, corpusSalt, log });
    this.#used = new UsedFragments({ db, spans, log });
    this.sources = new SourceService({
      ...{ db, corpora: this.corpora, files: this.files, corpusFiles: this.corpusFiles, storage: deps.storage },
      ...{ sealer: deps.sealer, networks: deps.sourceNetworks ?? [], nowMs: Date.now, log },
      ...{ uploads: join(deps.dataDir, "files"), folder: join(deps.dataDir, "fetched") },
    });
  }

  /** Removes orphaned bytes and goes on with what a stopped server left: ingestion, sweeping, prepare jobs. */
  async start(): Promise<void> {
    const known = new Set(listAllFileIds(this.#deps.db));
    const removed = await this.#content.removeOrphans(known);
    if (removed > 0)
      this.#deps.log("info", "removed bytes of uploads that were never acknowledged", { files: removed });
    await this.uploads.start();
    this.#sweeper.wakeAll();
    this.#expiry.wake();
    this.#ingestor.wake();
    this.#vectorizer?.start();
    this.prepare.start();
    await this.sources.start();
  }

  /** Ends background work after the running slices; the next start goes on with it. */
  async stop(): Promise<void> {
    const { prepare, pins, uploads, sources } = this;
    await Promise.all([
      sources.stop(),
      uploads.stop(),
      this.#expiry.stop(),
      prepare.stop(),
      pins.stop(),
      this.#ingestor.stop(),
      this.#vectorizer?.stop(),
      this.#sweeper.stop(),
    ]);
  }

  /** Resolves when no background work is left; for tests and for draining. */
  async idle(): Promise<void> {
    await this.sources.idle();
    await this.#ingestor.idle();
    await this.#vectorizer?.idle();
    await this.prepare.idle();
    await this.uploads.idle();
    await this.#expiry.idle();
    await this.#sweeper.idle();
    await this.pins.idle();
  }

  /** Best fragments for a question. @throws ApiError, with param `vector_store_ids` where one is unknown */
  async retrieve(request: RetrieveRequest): Promise<readonly RetrievedFragment[]> {
    const { db, searches, onSearched, hybridByDefault = false, reranker } = this.#deps;
    const [corpora, vectors] = [this.corpora, this.#vectorizer];
    const deps = { db, corpora, searches, vectors, hybridByDefault, onSearched, reranker };
    const found = await retrieve(deps, request);
    if (request.isAhead === true) this.#named(request.tenantId, found);
    return found;
  }

  /** Reads fragments in the order of the ids; undefined for each fragment that the tenant may not see. */
  readFragments(tenantId: TenantId, ids: readonly string[]): ReturnType<typeof readFragments> {
    const found = readFragments(this.#deps.db, this.corpora, tenantId, ids);
    this.#named(tenantId, found);
    return found;
  }

  #named(tenantId: TenantId, found: readonly (Pick<RetrievedFragment, "id"> | undefined)[]): void {
    const ids = found.flatMap((fragment) => fragment?.id ?? []);
    this.#deps.onNamed?.(tenantId, ids);
  }

  /**
   * Call when a request that used these fragments has ended. Fragments that were deleted while it ran are evicted once
   * more, because the request's worker may have stored them after the sweep.
   */
  #evictDeleted(fragments: readonly UsedFragment[]): void {
    if (fragments.length === 0) return;
    const ids: readonly FragmentId[] = fragments.map(({ id }) => id);
    const visible = visibleFragmentIds(this.#deps.db, ids);
    for (const { id, corpusId, text, salt } of fragments) {
      if (visible.has(id)) continue;
      // Of a corpus that is gone, nothing is visible, and the number of no corpus finds nothing.
      const corpusSeq = findCorpusAnyState(this.#deps.db, corpusId)?.seq ?? 0;
      this.#sweeper.evict(corpusSeq, [{ id, text, ordinal: 0 }], salt);
    }
  }

  /** A request has ended whose prompt held these fragments. */
  fragmentsUsed(fragments: readonly UsedFragment[], use: RequestUse): void {
    this.#evictDeleted(fragments);
    this.#used.note(fragments, use);
  }

  /** All workers forget the tenant's KV, including its corpora's fragments. @returns blocks that were held */
  purgeCache(tenantId: TenantId): number {
    return this.#deps.spans.evictTenant(tenantId, "all");
  }

  /**
   * Call after the salt of the tenant's own text was rotated: KV under the former salt is dropped to free its memory.
   */
  tenantSaltRetired(tenantId: TenantId): void {
    this.#deps.spans.evictTenant(tenantId, "text");
  }

  /** Call after a tenant was deleted with all that it owned. Resolves when the KV of all its corpora is evicted. */
  async tenantDeleted(tenantId: TenantId): Promise<void> {
    this.purgeCache(tenantId);
    this.prepare.abandon((job) => job.tenantId === tenantId);
    this.sources.recheck();
    this.#ingestor.recheck();
    this.uploads.wake();
    this.#sweeper.wake(tenantId);
    // The workers hear of all in one message.
    this.#deps.spans.evictCorpora(await this.corpora.saltsInTurns(tenantId));
  }
}
