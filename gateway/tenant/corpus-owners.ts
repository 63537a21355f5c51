/**
 * Knows which tenant owns a corpus's fragments, by the key that their chains begin with. That root key is made from the
 * corpus's salt, so a plan's chains themselves show which of them belong to a corpus. Fragments that follow a prompt's
 * own text are part of that prompt and belong to the prompt's tenant.
 */
import { LRUCache } from "lru-cache";
import type { TenantId } from "../../db/ids.ts";
import { rootKey } from "../../worker/contract/block-key.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";

export class CorpusOwners {
  readonly #modelDigest: () => string | undefined;
  /** Salts that were noted while the model's digest was unknown, so that no key could be made of them yet. */
  readonly #noted: LRUCache<CacheSalt, TenantId>;
  readonly #owners: LRUCache<BlockKey, TenantId>;

  /**
   * @param maxCorpora beyond this number the least recently used corpora are forgotten; each use notes a corpus again
   */
  constructor(modelDigest: () => string | undefined, maxCorpora: number) {
    this.#modelDigest = modelDigest;
    this.#noted = new LRUCache({ max: maxCorpora });
    this.#owners = new LRUCache({ max: maxCorpora });
  }

  /** Call before a corpus with this salt is used. */
  note(salt: CacheSalt, tenantId: TenantId): void {
    this.#noted.set(salt, tenantId);
  }

  /** The tenant that owns the chain, if the chain is a fragment of a corpus. */
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
