/**
 * Corpora that are shared. A tenant with a grant reads the corpus as its owner does, under the corpus's salt. So all of
 * them share one copy of the corpus's KV, and that copy counts for the owner.
 */
import { insertGrant } from "../../../db/corpora.ts";
import { countGrants, findGrant, type GrantRow, listGrants, removeGrant } from "../../../db/grants.ts";
import { parseId, type TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import { findTenant } from "../../../db/tenants.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";
import { ApiError } from "../../base/errors.ts";
import type { CorpusService } from "./corpora.ts";

const maxGrantsPerCorpus = 1_000;

export class GrantService {
  readonly #db: Db;
  readonly #corpora: CorpusService;
  readonly #onRevoked: (salt: CacheSalt, grantee: TenantId) => void;

  /** @param onRevoked called with the corpus's salt: what this tenant computed from the corpus can be dropped */
  constructor(db: Db, corpora: CorpusService, onRevoked: (salt: CacheSalt, grantee: TenantId) => void) {
    this.#db = db;
    this.#corpora = corpora;
    this.#onRevoked = onRevoked;
  }

  /**
   * Grants a tenant access. The call may be repeated: an existing grant stays as it is.
   * @throws ApiError not_found (the corpus is not the tenant's; with `param`: there is no such tenant), invalid_value
   *   (a grant to oneself), quota_exceeded
   */
  create(tenantId: TenantId, rawCorpusId: string, rawGrantee: string): GrantRow {
    const corpus = this.#corpora.require(tenantId, rawCorpusId, "own");
    const grantee = parseId("tenant", rawGrantee);
    const param = "tenant_id";
    if (grantee === tenantId) {
      throw new ApiError("invalid_value", { param, message: "The vector store is this tenant's own." });
    }
    return this.#db.transaction("createGrant", () => {
      if (grantee === undefined || findTenant(this.#db, grantee) === undefined) {
        throw new ApiError("not_found", { param, message: "No such tenant." });
      }
      const known = findGrant(this.#db, corpus.id, grantee);
      if (known !== undefined) return known;
      if (countGrants(this.#db, corpus.id) >= maxGrantsPerCorpus) {
        const message = `A vector store can be shared with at most ${maxGrantsPerCorpus} tenants.`;
        throw new ApiError("quota_exceeded", { message });
      }
      const createdAt = Date.now();
      insertGrant(this.#db, corpus.id, grantee, createdAt);
      return { corpusId: corpus.id, tenantId: grantee, createdAt };
    });
  }

  /** Lists all grants of a corpus, the oldest first. @throws ApiError not_found */
  list(tenantId: TenantId, rawCorpusId: string): readonly GrantRow[] {
    return listGrants(this.#db, this.#corpora.require(tenantId, rawCorpusId, "own").id);
  }

  /**
   * Revokes a grant: the corpus is unknown to the tenant from its next request on, and the KV that it computed from the
   * corpus is dropped.
   * @throws ApiError not_found
   */
  revoke(tenantId: TenantId, rawCorpusId: string, rawGrantee: string): TenantId {
    const corpus = this.#corpora.require(tenantId, rawCorpusId, "own");
    const grantee = parseId("tenant", rawGrantee);
    if (grantee === undefined || !removeGrant(this.#db, corpus.id, grantee)) throw new ApiError("not_found");
    this.#onRevoked(this.#corpora.saltOf(corpus), grantee);
    return grantee;
  }
}
