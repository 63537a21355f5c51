/** What has to hold of a simulated server's rows and files, and of what an attacker has who copied all of them. */
import type { Database } from "bun:sqlite";
import { expect } from "bun:test";
import type { KvScopes } from "../../gateway/kv/scopes.ts";
import type { KvObject } from "../../worker/contract/kv-object.ts";
import type { SubmitMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import { nobody } from "../../worker/contract/owners.ts";
import { blockCountForTokens } from "../../worker/contract/units.ts";
import { ObjectFile } from "../../worker/tiers/object-file.ts";
import { blockTokens } from "../engine/plans.ts";
import { referenceAnswer } from "../engine/reference.ts";
import { FakeBackend, fakeShape } from "../support/fake-backend.ts";
import { blockCount, card, contextTokens, eosTokenIds } from "./tiers-processes.ts";
import { type Fragment, isWhole } from "./tiers-texts.ts";
import type { VirtualDisk } from "./virtual-disk.ts";

/** An object that a worker was asked for, and whose text it is. */
export interface Asked {
  readonly object: KvObject;
  readonly fragment: Fragment;
}

/** Bytes that may lie in files. */
export interface Bounds {
  readonly mostBytes: number;
  readonly mostOfTenant: number;
}

interface Row {
  readonly id: string;
  readonly tenantId: string;
  readonly blockCount: number;
  readonly bytes: number;
  readonly sealedKey: Buffer;
  readonly scopeName: string;
  readonly scopeKey: Buffer;
  readonly spanKey: string;
  readonly lastKey: string;
}

const rowsSql = `select o.id, o.tenant_id as tenantId, o.block_count as blockCount, o.bytes, o.sealed_key as sealedKey, s.name as scopeName, s.sealed_key as scopeKey,
  o.span_key as spanKey, o.last_key as lastKey from kv_objects o join kv_scopes s on s.seq = o.scope_seq`;
const shape = { modelDigest: card.digest, blockTokens, blocks: new FakeBackend().mover.format };
const objectName = /^[0-9a-f]{32}$/;

export class TiersAudit {
  readonly #client: Database;
  readonly #scopes: KvScopes;
  readonly #disk: VirtualDisk;
  /** Every file that ever had its name, as it was then. */
  readonly #copies = new Map<string, Uint8Array>();

  /** What was found right last. */
  #checked = "";

  constructor(client: Database, scopes: KvScopes, disk: VirtualDisk) {
    this.#client = client;
    this.#scopes = scopes;
    this.#disk = disk;
  }

  /** Objects whose keys whoever has the database and the secret can open. */
  openableIds(): Set<string> {
    return new Set(this.#rows().flatMap(({ id, scopeKey }) => (scopeKey.length > 0 ? [id] : [])));
  }

  /** After every action: accounts are exact, nothing that is gone has a key, and what has got a row outlives a power cut. */
  async check(
    usage: { readonly objects: number; readonly blocks: number; readonly bytes: number } | undefined,
    { mostBytes, mostOfTenant }: Bounds,
    gone: ReadonlySet<string>,
    asked: ReadonlyMap<string, Asked>,
  ): Promise<void> {
    const changes = this.#client.query<{ n: number }, []>("select total_changes() as n").get()?.n;
    const state = `${changes} ${gone.size} ${usage?.objects} ${usage?.bytes}`;
    if (state === this.#checked) return;
    this.#checked = state;
    const rows = this.#rows();
    for (const { id, scopeKey } of rows) {
      if (gone.has(id) && scopeKey.length > 0) throw new Error(`object ${id} was deleted and can be opened`);
      if (!this.#copies.has(id)) await this.#checkNew(id, asked);
    }
    if (usage === undefined) return;
    const bytes = rows.reduce((sum, row) => sum + row.bytes, 0);
    const blocks = rows.reduce((sum, row) => sum + row.blockCount, 0);
    expect([usage.objects, usage.blocks, usage.bytes]).toEqual([rows.length, blocks, bytes]);
    expect(bytes).toBeLessThanOrEqual(mostBytes);
    for (const own of Map.groupBy(rows, ({ tenantId }) => tenantId).values()) {
      expect(own.reduce((sum, row) => sum + row.bytes, 0)).toBeLessThanOrEqual(mostOfTenant);
    }
  }

  async #checkNew(id: string, asked: ReadonlyMap<string, Asked>): Promise<void> {
    const bytes = this.#disk.read(id);
    if (bytes !== undefined) this.#copies.set(id, bytes.slice());
    if (!this.#isAtFault(id)) await expectWhole(id, this.#disk.durable(id), asked.get(id));
  }

  /** After a start nothing lies in the folder that has no row, and nothing that is damaged or half-written does. */
  checkFolder(): void {
    const ids = this.#rows().map(({ id }) => id);
    expect(this.#disk.names.toSorted()).toEqual([...ids, "owner"].sort());
  }

  /** What is deleted, and what was never committed, is gone while the server runs, unless the disk kept it. */
  checkNothingLeft(): void {
    const rows = this.#rows();
    const keyless = rows.find(({ scopeKey }) => scopeKey.length === 0);
    if (keyless !== undefined) throw new Error(`object ${keyless.id} has a row, and its scope has no key`);
    const known = new Set(["owner", ...rows.map(({ id }) => id), ...this.#disk.stuck]);
    const orphan = this.#disk.names.find((name) => !known.has(name));
    if (orphan !== undefined) throw new Error(`the file ${orphan} has no row`);
  }

  /**
   * A row is the commit of a file: what has one is there, and is what was to be kept, unless the disk itself is at fault.
   * @returns how many files were looked at
   */
  async checkFiles(asked: ReadonlyMap<string, Asked>): Promise<number> {
    let count = 0;
    for (const { id, scopeKey } of this.#rows()) {
      if (scopeKey.length === 0 || this.#isAtFault(id)) continue;
      await expectWhole(id, this.#disk.read(id), asked.get(id));
      count += 1;
    }
    return count;
  }

  /** Copies of files open with no key that is left, and files that are left open with no key of what is gone. */
  async checkGone(gone: ReadonlySet<string>, asked: ReadonlyMap<string, Asked>): Promise<void> {
    // As somebody who has the database and the secret, and nothing that a process remembers.
    this.#scopes.forgetKeys();
    const left = this.#rows().flatMap((row) => {
      const entry = asked.get(row.id);
      if (entry === undefined || row.scopeKey.length === 0) return [];
      const { rootKey, previousKey, position, tokenCount } = entry.object;
      const fields = { ...row, rootKey, previousKey, position, tokenCount } as never;
      const object = this.#scopes.objectOf(fields, nobody);
      if (object === undefined) throw new Error(`the key of object ${row.id} does not open`);
      expect(Buffer.from(object.dataKey)).toEqual(Buffer.from(entry.object.dataKey));
      return [object];
    });
    const goneKeys = [...gone].flatMap((id) => asked.get(id)?.object.dataKey ?? []);
    const leftKeys = left.map(({ dataKey }) => dataKey);
    for (const id of gone) await expectSealed(asked.get(id)?.object, this.#copies.get(id), leftKeys);
    for (const name of this.#disk.names.filter((one) => objectName.test(one))) {
      await expectSealed(asked.get(name)?.object, this.#disk.read(name), goneKeys);
    }
  }

  /** A worker says that an object's file is not what was written: it must not say so of one that is. */
  checkFailure(id: string, reason: string): void {
    const isSystems = /^E[A-Z]+$/.test(reason);
    if (isSystems || this.#isAtFault(id) || this.#disk.read(id) === undefined) return;
    throw new Error(`object ${id} is whole, and was found damaged: ${reason}`);
  }

  /** Whether all of the text's KV is in files. */
  isKept({ blockKeys }: Fragment): boolean {
    const lastKeys = new Set(this.#rows().map(({ lastKey }) => lastKey));
    const ends = blockKeys.filter((_, index) => (index + 1) % 32 === 0 || index === blockKeys.length - 1);
    return ends.every((key) => lastKeys.has(key));
  }

  /** Whether its files are what was written. */
  isSound({ blockKeys }: Fragment): boolean {
    const spanKey = blockKeys.at(-1);
    return !this.#rows().some((row) => row.spanKey === spanKey && this.#isAtFault(row.id));
  }

  #isAtFault(id: string): boolean {
    return this.#disk.faults.lies || this.#disk.isDamaged(id);
  }

  #rows(): readonly Row[] {
    return this.#client.query<Row, []>(rowsSql).all();
  }
}

/** @throws when what has a row is not what was to be kept */
async function expectWhole(id: string, bytes: Uint8Array | undefined, entry: Asked | undefined): Promise<void> {
  if (entry === undefined) throw new Error(`object ${id} was never asked for`);
  if (bytes === undefined) throw new Error(`object ${id} has a row and no file`);
  const file = new ObjectFile(entry.object, shape);
  const whole = await isWhole(file, entry.object, bytes, entry.fragment, shape);
  if (!whole) throw new Error(`the file of object ${id} is not what was to be kept`);
}

/** @throws when one of these keys opens the file */
async function expectSealed(
  object: KvObject | undefined,
  bytes: Uint8Array | undefined,
  dataKeys: readonly Uint8Array[],
): Promise<void> {
  if (object === undefined || bytes === undefined) return;
  for (const dataKey of dataKeys) {
    const file = new ObjectFile({ ...object, dataKey }, shape);
    const { at, span, bytes: plainBytes } = file.placeOf(0);
    const isOpen = await file.open(0, bytes.subarray(at, at + span), new Uint8Array(plainBytes), () => undefined);
    if (isOpen) throw new Error(`the file of object ${object.id} opens with a key that it must not`);
  }
}

/** An answer is that of a world without files and blocks. */
export function checkAnswer(message: SubmitMessage, tokenIds: readonly number[], end: WorkerMessage): void {
  if (end.type === "failed") return expect<string[]>(["overloaded", "prompt_too_long"]).toContain(end.code);
  const expected = referenceAnswer(message, { ...fakeShape, blockCount, contextTokens }, eosTokenIds).tokenIds;
  const { runs } = message.plan;
  const blocks = runs.reduce((sum, run) => sum + blockCountForTokens(run.tokenIds.length, blockTokens), 0);
  // An answer that outgrows the pool ends there.
  const isCut = blocks === blockCount && tokenIds.length < expected.length;
  expect(tokenIds).toEqual(isCut ? expected.slice(0, tokenIds.length) : expected);
}
