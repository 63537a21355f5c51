/** A small world for the corpus side: a database, a content folder, and spans that are keyed as in earnest. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Db, openDb } from "../../db/open.ts";
import { ApiError } from "../../gateway/base/errors.ts";
import type { CorpusDeps, PreparedSpan, PrepareFacts, SpanPort, SpanText } from "../../gateway/corpus/base/ports.ts";
import { Corpus } from "../../gateway/corpus/corpus.ts";
import { Searches } from "../../gateway/corpus/search/searches.ts";
import { ServerSecret } from "../../gateway/tenant/secret.ts";
import { TenantStorage } from "../../gateway/tenant/storage.ts";
import { TenantService } from "../../gateway/tenant/tenants.ts";
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { KvTier } from "../../worker/contract/tiers.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { countTokens } from "./fixtures.ts";

const blockTokens = 4;

/** Workers' memory as a set of keys. `hold` lets a test stop preparing in the middle. */
export class FakeSpans implements SpanPort {
  readonly resident = new Set<BlockKey>();
  readonly #salts = new Map<BlockKey, CacheSalt>();
  /** Spans that were keyed. */
  lowered = 0;
  readonly evictedSalts: CacheSalt[] = [];
  readonly prepared: string[] = [];
  /** Those of them that were not resident. */
  readonly computed: string[] = [];
  /** Fragments whose spans were made ahead of their use. */
  readonly warmed: string[] = [];
  ready = true;
  /** Tokens that the template puts before every text, the same ones. */
  headerTokens = 0;
  /** Errors that the next calls of prepareSpans throw, first one first. */
  readonly failures: ApiError[] = [];
  /** Awaited before each span; aborted with the job. */
  gate: () => Promise<void> = () => Promise.resolve();

  /** When what was prepared is in its file. */
  written: (span: SpanText) => Promise<void> = () => Promise.resolve();

  lowerSpan({ text, salt }: SpanText) {
    if (!this.ready) throw new ApiError("not_ready");
    this.lowered += 1;
    // Texts that begin alike have their first tokens in common, and the last token is of the whole text.
    const body = this.headerTokens === 0 ? text : "=".repeat(4 * this.headerTokens) + text;
    const count = countTokens(text) + this.headerTokens + 2;
    const tokenIds = Int32Array.from({ length: count }, (_, i) =>
      Number(Bun.hash.crc32(i < count - 1 ? body.slice(4 * i, 4 * i + 4) : text)),
    );
    const root = rootKey("digest", salt, "span");
    return { tokenIds, blockKeys: runBlockKeys(root, tokenIds, blockTokens, true) };
  }

  async warmSpan({ id }: SpanText): Promise<void> {
    this.warmed.push(id);
    await new Promise((resolve) => setImmediate(resolve));
  }

  async *prepareSpans(
    spans: readonly SpanText[],
    signal: AbortSignal,
    facts?: PrepareFacts,
  ): AsyncGenerator<PreparedSpan> {
    this.goals.push(facts?.goal);
    const failure = this.failures.shift();
    if (failure !== undefined) throw failure;
    for (const span of spans) {
      await this.gate();
      signal.throwIfAborted();
      const { tokenIds, blockKeys } = this.lowerSpan(span);
      const source = blockKeys.every((blockKey) => this.resident.has(blockKey)) ? "device" : "computed";
      if (source === "computed") this.computed.push(span.id);
      for (const blockKey of blockKeys) {
        this.resident.add(blockKey);
        this.#salts.set(blockKey, span.salt);
      }
      this.prepared.push(span.id);
      yield { id: span.id, tokens: tokenIds.length, source, worker: 0, kept: this.written(span) };
    }
  }

  evict(blockKeys: readonly BlockKey[]): void {
    for (const blockKey of blockKeys) this.resident.delete(blockKey);
  }

  evictCorpora(salts: readonly CacheSalt[]): void {
    this.evictedSalts.push(...salts);
    for (const blockKey of this.resident) {
      if (salts.some((salt) => this.#salts.get(blockKey) === salt)) this.resident.delete(blockKey);
    }
  }

  /** What of whose was evicted, that it had made of a corpus. */
  readonly evictedDerived: (readonly [salt: CacheSalt, tenantId: string])[] = [];

  evictDerived(salt: CacheSalt, tenantId: string): void {
    this.evictedDerived.push([salt, tenantId]);
  }

  pinned: ReadonlyMap<BlockKey, string> = new Map();
  mostPinned = 1_000;

  get isReady(): boolean {
    return this.ready;
  }

  pinnedSpans: ReadonlySet<BlockKey> = new Set();

  pinnedBelow: ReadonlyMap<BlockKey, string> = new Map();

  setPinned(
    tenants: ReadonlyMap<BlockKey, string>,
    spanKeys: ReadonlySet<BlockKey>,
    below: ReadonlyMap<BlockKey, string>,
  ): void {
    this.pinned = tenants;
    this.pinnedSpans = spanKeys;
    this.pinnedBelow = below;
  }

  mostPinnedBlocks(): number {
    return this.mostPinned;
  }

  /** Tenants whose KV was evicted, and what of it. */
  readonly evictedTenants: (readonly [tenantId: string, part: string])[] = [];

  evictTenant(tenantId: string, part: "text" | "all"): number {
    this.evictedTenants.push([tenantId, part]);
    return this.resident.size;
  }

  tiers: readonly KvTier[] = ["device"];
  /** Of all calls. */
  readonly goals: PrepareFacts["goal"][] = [];

  tiersHolding(): readonly KvTier[] {
    return [];
  }

  /** Fragments that were to be kept because of their use. */
  readonly keptByUse: string[] = [];

  async keepUsed(span: SpanText) {
    this.keptByUse.push(span.id);
    const spanKey = this.lowerSpan(span).blockKeys.at(-1);
    return spanKey === undefined ? undefined : { spanKey, worker: 0 };
  }

  isKept(): boolean {
    return true;
  }

  residentWorkers(spanKey: BlockKey, tier: "device" | "host" = "device"): readonly number[] {
    return tier === "device" && this.resident.has(spanKey) ? [0] : [];
  }
}

export interface World {
  readonly dir: string;
  readonly db: Db;
  /** What tenants may still store. */
  readonly disk: { freeBytes: number };
  readonly storage: TenantStorage;
  readonly secret: ServerSecret;
  readonly tenants: TenantService;
  readonly spans: FakeSpans;
  readonly corpus: Corpus;
  readonly logged: string[];
  /** Ends background work, closes the database; the folder stays, for a next world on it. */
  close(): Promise<void>;
  remove(): Promise<void>;
}

/** @param vectors what makes vectors and scores; absent: words alone are searched */
export function createWorld(
  dir: string = mkdtempSync(join(tmpdir(), "spangate-corpus-")),
  vectors: Pick<CorpusDeps, "embedder" | "hybridByDefault" | "reranker" | "onSearched" | "sourceNetworks"> = {},
): World {
  const db = openDb(join(dir, "spangate.db"));
  const secret = new ServerSecret(new Uint8Array(32).fill(7));
  const tenants = new TenantService(db, secret);
  const spans = new FakeSpans();
  const logged: string[] = [];
  const disk = { freeBytes: 2 ** 40, availableBytes: () => disk.freeBytes, availableForSmall: () => disk.freeBytes };
  const storage = new TenantStorage(db, {
    disk,
    limitOf: (tenantId) => tenants.limits.ofTenant(tenantId).storageBytes,
    defaultBytes: undefined,
  });
  const searches = new Searches(db);
  const corpus = new Corpus({
    searches,
    storage,
    db,
    dataDir: dir,
    tokenizer: { countTokens },
    corpusSalt: (id, epoch) => tenants.corpusSalt(id, epoch),
    sealer: tenants.sealer,
    spans,
    ...vectors,
    log: (level, message, fields) => void logged.push(`${level} ${message} ${JSON.stringify(fields ?? {})}`),
  });
  const close = async () => {
    await Promise.all([corpus.stop(), searches.stop()]);
    db.close();
  };
  const remove = async () => {
    await close();
    rmSync(dir, { recursive: true, force: true });
  };
  return { dir, db, disk, storage, secret, tenants, spans, corpus, logged, close, remove };
}

/** Uploads a text and attaches it; resolves once ingestion has nothing left to do. */
export async function ingestText(
  world: World,
  store: { readonly id: string; readonly tenantId: string },
  filename: string,
  text: string,
  attributes: Record<string, string | number | boolean> = {},
  maxTokens = 32,
) {
  const tenantId = store.tenantId as `tenant_${string}`;
  const bytes = new TextEncoder().encode(text);
  const upload = { filename, purpose: "assistants", mediaType: "text/plain", bytes };
  const file = await world.corpus.files.upload(tenantId, upload);
  const row = world.corpus.corpora.require(tenantId, store.id, "own");
  const chunking = { maxTokens, overlapTokens: 0 };
  await world.corpus.corpusFiles.attach(row, [{ fileId: file.id, attributes, chunking }], "file_id");
  await world.corpus.idle();
  return file;
}
