/** What is deleted in a simulated server, and how the product goes about it. */
import type { KvObjects } from "../../gateway/kv/objects.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import type { Fragment, Texts } from "./tiers-texts.ts";

/**
 * A fragment with its text; its KV alone; all KV of a corpus, whose texts stay; a corpus's salt; a corpus; a tenant.
 */
export type DeletionKind = "fragment" | "evict" | "scope" | "rotate" | "corpus" | "tenant";

/** Texts whose KV goes: what its keys are on the workers, and what the gateway does. */
export interface Deletion {
  readonly fragments: readonly Fragment[];
  readonly keys: readonly BlockKey[];
  readonly isByScope: boolean;
  readonly act: (kv: KvObjects) => void;
}

/** Changes the texts; the KV is left to `act`. @param now counts the world's actions */
export function deletionOf(texts: Texts, kind: DeletionKind, fragment: Fragment, now: number): Deletion {
  const { corpus, salt, rootKey, blockKeys } = fragment;
  const ofScope = (fragments: readonly Fragment[]): Deletion => ({
    ...{ fragments, keys: [rootKey], isByScope: true, act: (kv) => kv.evictScopes([salt]) },
  });
  switch (kind) {
    case "fragment":
    case "evict":
      if (kind === "fragment") fragment.isGone = true;
      fragment.evictedAt = now;
      return { fragments: [fragment], keys: blockKeys, isByScope: false, act: (kv) => kv.evict(blockKeys, salt) };
    case "scope": {
      const fragments = texts.live.filter((other) => other.corpus === corpus);
      for (const other of fragments) other.evictedAt = now;
      return ofScope(fragments);
    }
    case "rotate":
      return ofScope(texts.rotate(corpus));
    case "corpus":
      return ofScope(texts.remove(corpus));
    case "tenant": {
      const fragments = texts.removeTenant(corpus.tenantId);
      const keys = [...new Set(fragments.map((other) => other.rootKey))];
      return { fragments, keys, isByScope: true, act: (kv) => kv.evictTenant(corpus.tenantId) };
    }
  }
}
