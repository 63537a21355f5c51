/**
 * Keys of KV in files. A scope is a corpus at one epoch of its salt. Its random key, sealed by a key of the server's
 * secret, stands in its row and seals the keys of its objects: whoever deletes the row destroys every copy of the files.
 */
import { createHmac, randomBytes } from "node:crypto";
import { LRUCache } from "lru-cache";
import type { TenantId } from "../../db/ids.ts";
import type { ListedObject } from "../../db/kv-objects.ts";
import { dataKeyBytes, type KvObject } from "../../worker/contract/kv-object.ts";
import type { KvOwner } from "../../worker/contract/owners.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { openSealed, sealBytes } from "../base/sealed.ts";

/** The corpus and the epoch that a salt is of. */
export interface ScopeFacts {
  readonly tenantId: TenantId;
  readonly corpusId: string;
  readonly saltEpoch: number;
}

/** Corpora whose salt is remembered from its last use. */
const rememberedSalts = 65_536;

export class KvScopes {
  readonly #key: Uint8Array;
  /** Keys of scopes by name: as many as corpora have KV in files. */
  readonly #opened = new Map<string, Uint8Array>();
  readonly #facts = new LRUCache<CacheSalt, ScopeFacts>({ max: rememberedSalts });

  /** @param key of the server's secret, for this purpose alone */
  constructor(key: Uint8Array) {
    this.#key = key;
  }

  /** Call before KV under this salt is kept. */
  note(salt: CacheSalt, facts: ScopeFacts): void {
    this.#facts.set(salt, facts);
  }

  factsOf(salt: CacheSalt): ScopeFacts | undefined {
    return this.#facts.get(salt);
  }

  /** What the scope of a salt is called in the database; it does not tell the salt. */
  nameOf(salt: CacheSalt): string {
    return createHmac("sha256", this.#key).update("scope").update(salt).digest("hex");
  }

  /**
   * Seals an object's key.
   * @param sealedScope the scope's key as it stands in its row; undefined: the scope is new
   * @returns the object's key and the scope's, as they stand in their rows
   */
  seal(name: string, sealedScope: Uint8Array | undefined, objectId: string, dataKey: Uint8Array) {
    const scopeKey = sealedScope === undefined ? randomBytes(dataKeyBytes) : this.#openScope(name, sealedScope);
    const scope = sealedScope === undefined ? sealBytes(this.#key, scopeKey, name) : Buffer.from(sealedScope);
    return { scope, object: sealBytes(scopeKey, dataKey, objectId) };
  }

  /**
   * An object with its key. undefined: its key does not open, because its scope's is destroyed, or because the secret
   * was restored from elsewhere.
   */
  objectOf(row: ListedObject, owner: KvOwner): KvObject | undefined {
    const { id, position, tokenCount, scopeName, scopeKey, sealedKey } = row;
    try {
      const dataKey = new Uint8Array(openSealed(this.#openScope(scopeName, scopeKey), sealedKey, id));
      // Keys are what the database holds of them.
      const [rootKey, previousKey, lastKey] = [row.rootKey, row.previousKey, row.lastKey] as BlockKey[];
      return { id, dataKey, rootKey, previousKey, lastKey, position, tokenCount, owner };
    } catch {
      return undefined;
    }
  }

  /** Forgets the keys of scopes that were opened. */
  forgetKeys(): void {
    this.#opened.clear();
  }

  #openScope(name: string, sealed: Uint8Array): Uint8Array {
    return this.#opened.getOrInsertComputed(name, () => openSealed(this.#key, sealed, name));
  }
}
