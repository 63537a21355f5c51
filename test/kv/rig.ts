/** The gateway's side of KV files over a real database and folder, with a worker that writes what it is asked for. */
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { insertCorpus } from "../../db/corpora.ts";
import { newId, type TenantId } from "../../db/ids.ts";
import { type Db, openDb } from "../../db/open.ts";
import { insertTenant } from "../../db/tenants.ts";
import { KvObjects, type KvObjectsOptions } from "../../gateway/kv/objects.ts";
import { KvScopes } from "../../gateway/kv/scopes.ts";
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { KvObject } from "../../worker/contract/kv-object.ts";
import type { GatewayMessage } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { nobody } from "../../worker/contract/owners.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { countUp } from "../engine/plans.ts";

export const card: ModelCard = {
  ...{ id: "m", digest: "cd".repeat(32), vocabSize: 97, contextTokens: 4_096, blockTokens: 4, blockCount: 128 },
  ...{ kvBytesPerBlock: 48, eosTokenIds: [], numericMode: "fake", backend: "fake" },
  kvFormat: { name: "fake", blockTokens: 4, blockBytes: 48 },
};

export const saltA = "QQ==" as CacheSalt;
export const saltB = "Qg==" as CacheSalt;

export function spanOf(salt: CacheSalt, from: number, tokenCount: number) {
  const tokenIds = countUp(from, tokenCount);
  const root = rootKey("fake", salt, "span");
  return { rootKey: root, tokenIds, blockKeys: runBlockKeys(root, tokenIds, 4, true) };
}

export class KvRig implements Disposable {
  readonly dir = mkdtempSync(join(tmpdir(), "spangate-kv-rig-"));
  readonly folder = join(this.dir, "kv");
  /** Objects that were made as copies of others. */
  #copies = 0;
  readonly db: Db = openDb(join(this.dir, "spangate.db"));
  readonly sent: GatewayMessage[] = [];
  readonly logged: string[] = [];
  readonly tenantIds = [newId("tenant"), newId("tenant")] as const;
  readonly corpusIds = [newId("corpus"), newId("corpus")] as const;
  freeBytes = 2 ** 40;
  readonly quotas = new Map<string, number>();
  /** What the worker answers to `keep`: it writes and says so, says this reason, or says nothing yet. */
  answer: "kept" | "nothing" | { readonly reason: string } = "kept";
  #kv: KvObjects | undefined;

  constructor() {
    this.tenantIds.forEach((id, index) => {
      insertTenant(this.db, { id, name: `t${index}`, createdAt: 0 });
      const fields = {
        name: "",
        description: null,
        metadata: {},
        createdAt: 0,
        expiresAfterDays: null,
        expiresAt: null,
      };
      insertCorpus(this.db, { ...fields, id: this.corpusIds[index as 0 | 1], tenantId: id });
    });
  }

  get kv(): KvObjects {
    if (this.#kv === undefined) throw new Error("it was not started");
    return this.#kv;
  }

  /** What a start of the server does, and the first worker's being ready. */
  async start(options: Partial<KvObjectsOptions> = {}): Promise<void> {
    await this.#kv?.stop();
    this.sent.length = 0;
    const scopes = new KvScopes(new Uint8Array(32).fill(7));
    [saltA, saltB].forEach((salt, index) => {
      const at = index as 0 | 1;
      scopes.note(salt, { tenantId: this.tenantIds[at], corpusId: this.corpusIds[at], saltEpoch: 0 });
    });
    const kv = new KvObjects({
      ...{ db: this.db, scopes, folder: this.folder, owner: "me", mostBytes: undefined },
      log: (level, message, fields) => void this.logged.push(`${level} ${message} ${JSON.stringify(fields ?? {})}`),
      send: (_workerId, message) => this.#send(message),
      readyWorkers: () => ["worker-0"],
      card: () => card,
      ownerOf: () => nobody,
      freeBytes: () => this.freeBytes,
      quotaBytesOf: (tenantId) => this.quotas.get(tenantId),
      ...options,
    });
    this.#kv = kv;
    kv.start();
    await kv.onReady("worker-0");
  }

  keep(salt: CacheSalt, from: number, tokenCount = 20, usedBefore?: number): ReturnType<KvObjects["keep"]> {
    return this.kv.keep("worker-0", spanOf(salt, from, tokenCount), salt, { usedBefore });
  }

  /** Gives the tenant's first object so many likenesses, each with a file and an earlier use. */
  copy(tenantId: TenantId, count: number): void {
    const fields =
      "scope_seq, sealed_key, model_digest, format, root_key, previous_key, span_key, position, token_count, tenant_id, block_count, pinned, on_disk, in_bucket, bytes";
    const insert = this.db.client.query(
      `insert into kv_objects (id, last_key, used_at, ${fields})
       select ?, ?, ?, ${fields} from kv_objects where tenant_id = ? order by seq limit 1`,
    );
    this.db.transaction("copy", () => {
      for (let at = 0; at < count; at++) {
        const id = (this.#copies++).toString(16).padStart(32, "0");
        insert.run(id, id, at, tenantId);
        writeFileSync(join(this.folder, id), "sealed");
      }
    });
  }

  /** Objects that a worker was told of since the start. */
  get catalog(): KvObject[] {
    return this.sent.flatMap((message) => (message.type === "catalog" && !message.warm ? message.objects : []));
  }

  get forgotten(): string[] {
    return this.sent.flatMap((message) => (message.type === "forget" ? message.objectIds : []));
  }

  /** Files of objects, and those that were begun. */
  async files(): Promise<string[]> {
    await this.#kv?.stop();
    return readdirSync(this.folder).filter((name) => name !== "owner");
  }

  get rows(): number {
    return this.db.client.query<{ n: number }, []>("select count(*) as n from kv_objects").get()?.n ?? -1;
  }

  get scopes(): number {
    return this.db.client.query<{ n: number }, []>("select count(*) as n from kv_scopes").get()?.n ?? -1;
  }

  /** The worker has written the object that it was asked for last. */
  finish(): void {
    const message = this.sent.findLast(({ type }) => type === "keep");
    if (message?.type !== "keep") throw new Error("nothing is to be kept");
    writeFileSync(join(this.folder, message.object.id), "sealed");
    this.kv.onMessage({ type: "kept", objectId: message.object.id });
  }

  [Symbol.dispose](): void {
    this.db.close();
    rmSync(this.dir, { recursive: true, force: true });
  }

  #send(message: GatewayMessage): boolean {
    this.sent.push(message);
    if (message.type !== "keep" || this.answer === "nothing") return true;
    const { answer } = this;
    const objectId = message.object.id;
    // As through a pipe: the answer comes later.
    queueMicrotask(() => {
      if (answer === "kept") writeFileSync(join(message.folder, objectId), "sealed");
      this.kv.onMessage(
        answer === "kept" ? { type: "kept", objectId } : { type: "keep failed", objectId, reason: answer.reason },
      );
    });
    return true;
  }
}
