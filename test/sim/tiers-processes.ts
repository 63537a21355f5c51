/** The processes of a server with KV in files, over a virtual disk: each can end at any time, and is heard of no more. */
import type { Database } from "bun:sqlite";
import { DbError } from "../../db/errors.ts";
import type { TenantId } from "../../db/ids.ts";
import { Db } from "../../db/open.ts";
import { KvObjects } from "../../gateway/kv/objects.ts";
import type { KvScopes } from "../../gateway/kv/scopes.ts";
import type { GatewayMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { nobody } from "../../worker/contract/owners.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { blockTokens } from "../engine/plans.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import type { Choices } from "./random.ts";
import type { VirtualDisk } from "./virtual-disk.ts";

export const eosTokenIds = [0, 1];
export const contextTokens = 512;
export const blockCount = 64;
export const folder = "/kv";
const blockBytes = 12 * blockTokens;

export const card: ModelCard = {
  ...{ id: "m", digest: "cd".repeat(32), vocabSize: 97, contextTokens, blockTokens, blockCount: 1 },
  ...{ kvBytesPerBlock: 32, eosTokenIds, numericMode: "fake", backend: "fake" },
  kvFormat: { name: "fake", blockTokens, blockBytes },
};

/** The database as one gateway's process has it; it can be full for a while. */
class ProcessDb extends Db {
  isEnded = false;
  readonly #isFull: () => boolean;

  constructor(client: Database, isFull: () => boolean) {
    super(client, 200);
    this.#isFull = isFull;
  }

  override statement<T>(name: string, work: Parameters<typeof Db.prototype.statement<T>>[1]): T {
    this.#check(name);
    return super.statement(name, work);
  }

  override transaction<T>(name: string, work: Parameters<typeof Db.prototype.transaction<T>>[1]): T {
    this.#check(name);
    return super.transaction(name, work);
  }

  #check(name: string): void {
    if (this.isEnded) throw new Error("the process has ended");
    const isChange = /^(insert|touch|remove|destroy)/.test(name);
    if (isChange && this.#isFull()) throw new DbError("full", name, "SQLITE_FULL");
  }
}

export interface GatewayOptions {
  readonly client: Database;
  /** Costs more to make than all else; a new process has none of its keys. */
  readonly scopes: KvScopes;
  readonly disk: VirtualDisk;
  readonly processId: number;
  readonly mostBytes: number | undefined;
  readonly mostOfTenant: number | undefined;
  readonly isDbFull: () => boolean;
  readonly freeBytes: () => number;
  readonly workers: () => readonly SimWorker[];
  readonly onSend: (message: GatewayMessage) => void;
}

export class SimGateway {
  readonly kv: KvObjects;
  readonly processId: number;
  readonly logged: string[] = [];
  readonly #db: ProcessDb;
  readonly #options: GatewayOptions;

  constructor(options: GatewayOptions) {
    const { client, scopes, disk, processId, mostBytes, mostOfTenant, isDbFull, freeBytes, workers } = options;
    this.#options = options;
    this.processId = processId;
    this.#db = new ProcessDb(client, isDbFull);
    scopes.forgetKeys();
    this.kv = new KvObjects({
      ...{ db: this.#db, scopes, folder, owner: "me", mostBytes, freeBytes },
      log: (level, message, fields) => void this.logged.push(`${level} ${message} ${JSON.stringify(fields ?? {})}`),
      files: disk.of(processId),
      send: (workerId, message) => this.send(workerId, message),
      readyWorkers: () => workers().flatMap(({ id, isReady }) => (isReady ? [id] : [])),
      card: () => card,
      ownerOf: (_tenantId: TenantId) => nobody,
      quotaBytesOf: () => mostOfTenant,
    });
  }

  send(workerId: string, message: GatewayMessage): boolean {
    if (this.#db.isEnded) return false;
    const worker = this.#options.workers().find(({ id }) => id === workerId);
    if (worker === undefined) return false;
    this.#options.onSend(message);
    worker.inbox.push(message);
    return true;
  }

  end(): void {
    this.#db.isEnded = true;
  }
}

/** What a worker says besides its messages: that it has started. */
export type FromWorker = WorkerMessage | "ready";

interface WorkerOptions {
  readonly id: string;
  readonly processId: number;
  readonly disk: VirtualDisk;
  readonly choices: Choices;
  /** All keys of chains that begin with this key; of a block's key itself alone. */
  readonly chainOf: (key: BlockKey) => readonly BlockKey[];
}

export class SimWorker {
  readonly id: string;
  readonly processId: number;
  readonly backend: FakeBackend;
  readonly engine: Engine;
  readonly inbox: GatewayMessage[] = [];
  readonly outbox: FromWorker[] = ["ready"];
  /** Keys that it was told to forget, and was not given since. */
  readonly evicted = new Set<BlockKey>();
  /** The gateway has heard that it is there. */
  isReady = false;
  /** What a step or a message came to that never should. */
  failure: unknown;
  #isStepping = false;
  #hasWork = false;
  #isEnded = false;

  readonly #chainOf: WorkerOptions["chainOf"];

  constructor({ id, processId, disk, choices, chainOf }: WorkerOptions) {
    this.id = id;
    this.processId = processId;
    this.#chainOf = chainOf;
    const rowMs = choices.pick([0, 0.5, 3]);
    this.backend = new FakeBackend({ blockCount, contextTokens }, ({ tokenIds }) => {
      return rowMs === 0 ? undefined : new Promise((resolve) => setTimeout(resolve, rowMs * tokenIds.length));
    });
    this.engine = new Engine({
      backend: this.backend,
      eosTokenIds,
      limits: { maxRunningRequests: choices.int(1, 4), maxWaitingRequests: 8, stepTokens: choices.pick([16, 64]) },
      clock: () => performance.now(),
      emit: (message) => {
        if (!this.#isEnded) this.outbox.push(message);
      },
      debug: true,
      modelDigest: card.digest,
      files: disk.of(processId),
    });
  }

  /** Whether a step is in progress or found something to do. */
  get isBusy(): boolean {
    return this.#isStepping || this.#hasWork;
  }

  /** Whether nothing more comes of it by itself. */
  get isQuiet(): boolean {
    const isWaiting = this.inbox.length + this.outbox.length > 0;
    return !isWaiting && !this.isBusy && this.engine.tiers.disk?.loads.isBusy !== true;
  }

  /** Begins a step, unless one is in progress. */
  step(): void {
    if (this.#isStepping) return;
    this.#isStepping = true;
    this.engine.step().then(
      (hasWork) => {
        this.#isStepping = false;
        this.#hasWork = hasWork;
      },
      (error: unknown) => {
        this.failure = error;
      },
    );
  }

  /** Takes one message, as the worker's process does. */
  receive(): void {
    const message = this.inbox.shift();
    if (message === undefined) return;
    switch (message.type) {
      case "submit":
        this.#hasWork = true;
        for (const { blockKeys } of message.plan.runs) for (const key of blockKeys) this.evicted.delete(key);
        return this.engine.submit(message);
      case "abort":
        return this.engine.abort(message.requestId);
      case "evict":
        for (const key of message.blockKeys.flatMap(this.#chainOf)) this.evicted.add(key);
        return this.engine.evict(message.blockKeys);
      case "keep":
      case "catalog":
      case "forget":
        return this.engine.tiers.disk?.receive(message);
      default:
        throw new Error(`no simulated worker is sent ${message.type}`);
    }
  }

  end(): void {
    this.#isEnded = true;
  }
}
