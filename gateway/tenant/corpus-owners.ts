/**
 * Whose the fragments of a corpus are, by the key that their chains begin with. A span's root is made from the corpus'
 * salt, so a plan tells by itself which of its chains are a corpus's; fragments that a prompt's own text stands before
 * are part of that prompt, and of its tenant.
 */
import { LRUCache } from "lru-cache";
import type { TenantId } from "../../db/ids.ts";
import { rootKey } from "../../worker/contract/block-key.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";

export class CorpusOwners {
  readonly #modelDigest: () => string | undefined;
  /** Noted, and not keyed yet: keys need the model's digest. */
  readonly #noted: LRUCache<CacheSalt, TenantId>;
  readonly #owners: LRUCache<BlockKey, TenantId>;

  /** @param maxCorpora the least recently used are forgotten; each use of a corpus notes it again */
  constructor(modelDigest: () => string | undefined, maxCorpora: number) {
    this.#modelDigest = modelDigest;
    this.#noted = new LRUCache({ max: maxCorpora });
    this.#owners = new LRUCache({ max: maxCorpora });
  }

  /** A corpus is about to be used with this salt. */
  note(salt: CacheSalt, tenantId: TenantId): void {
    this.#noted.set(salt, tenantId);
  }

  /** Tenant that owns the chain, when it is a corpus's fragment. */
  ownerOf(root: BlockKey): TenantId | undefined {
    const digest = this.#modelDigest();
    if (digest === undefined) return undefined;
    if (this.#noted.size > 0) {
      for (const [salt, tenantId] of this.#noted) this.#owners.set(rootKey(digest, salt, "span"), tenantId);
      this.#noted.clear();
    }
    return this.#owners.get(root);
  }
}
