/** Every place where a salt is made, handed on, or goes into a key or into what remembers keys; each with the salt taken away. */
import type { Mutant } from "../support/mutants.ts";

const none = `("" as never)`;

/** A place of a file, and ways to lose the salt there. */
function site(file: string, find: string, ways: Readonly<Record<string, string>>): readonly Mutant[] {
  return Object.entries(ways).map(([name, replace]) => ({ name: `${file}: ${name}`, file, find, replace }));
}

export const saltMutants: readonly Mutant[] = [
  ...site("worker/contract/block-key.ts", "digest([domain, modelDigest, salt, kind, parentKey", {
    "a root without the salt": "digest([domain, modelDigest, kind, parentKey",
  }),
  ...site("gateway/tenant/salts.ts", `secret.derive("salt")`, {
    "salts without the server's secret": "new Uint8Array(32)",
  }),
  ...site("gateway/tenant/salts.ts", `["tenant", tenantId, String(epoch)]`, {
    "a tenant's salt without the tenant": `["tenant", String(epoch)]`,
    "a tenant's salt without the epoch": `["tenant", tenantId]`,
    "a tenant's salt without its kind": `["corpus", tenantId, String(epoch)]`,
  }),
  ...site("gateway/tenant/salts.ts", `["subdivision", tenantSalt, subdivision]`, {
    "a subdivision without the tenant's salt": `["subdivision", subdivision]`,
    "a tenant's salt without the subdivision": `["subdivision", tenantSalt]`,
  }),
  ...site("gateway/tenant/salts.ts", `["corpus", corpusId, String(epoch)]`, {
    "a corpus's salt without the corpus": `["corpus", String(epoch)]`,
    "a corpus's salt without the epoch": `["corpus", corpusId]`,
  }),
  ...site("gateway/tenant/tenants.ts", "ofTenant(tenantId, saltEpoch)", {
    "the salt of no tenant": `ofTenant("", saltEpoch)`,
    "the first epoch's salt": "ofTenant(tenantId, 0)",
  }),
  ...site("gateway/tenant/tenants.ts", "this.#tenantSalts.get(tenantId,", {
    "the salt of whoever asked first": `this.#tenantSalts.get("",`,
  }),
  ...site("gateway/tenant/tenants.ts", "this.#salts.within(own.salt, subdivision)", {
    "a subdivision of nobody's salt": `this.#salts.within("" as CacheSalt, subdivision)`,
    "the subdivision is dropped": "own.salt",
  }),
  ...site("gateway/tenant/tenants.ts", "ofCorpus(corpusId, epoch)", {
    "the salt of no corpus": `ofCorpus("", epoch)`,
    "the corpus's first epoch's salt": "ofCorpus(corpusId, 0)",
  }),
  ...site("gateway/corpus/base/corpora.ts", "this.#saltOf(row.id, row.saltEpoch, row.tenantId)", {
    "another corpus's salt": `this.#saltOf("", row.saltEpoch, row.tenantId)`,
    "the first epoch": "this.#saltOf(row.id, 0, row.tenantId)",
  }),
  ...site("gateway/corpus/search/retrieve.ts", "undefined : corpora.saltOf(corpus)", {
    "fragments that are read have no salt": `undefined : ${none}`,
  }),
  ...site("gateway/corpus/prepare/prepare-work.ts", "const salt = corpora.saltOf(corpus)", {
    "what is prepared has no salt": `const salt = ${none}`,
  }),
  ...site("gateway/generate/pipeline.ts", "this.#deps.cacheSalt(tenantId, request.cacheSalt)", {
    "a chat has no salt": none,
    "a chat's own salt is dropped": "this.#deps.cacheSalt(tenantId, undefined)",
  }),
  ...site("gateway/generate/pipeline.ts", "this.#deps.cacheSalt(job.tenantId, cacheSalt)", {
    "a completion has no salt": none,
  }),
  ...site("gateway/generate/plan-documents.ts", "salt: fileId === undefined ? salt : saltOfFile(fileId)", {
    "a chat's documents have no salt": `salt: fileId === undefined ? ${none} : saltOfFile(fileId)`,
    "a chat's uploads have no salt": `salt: fileId === undefined ? salt : ${none}`,
  }),
  ...site("gateway/generate/pipeline.ts", "this.#deps.cacheSalt(tenantId, saltNameOfFile(fileId))", {
    "an upload's salt without the upload": "this.#deps.cacheSalt(tenantId, undefined)",
  }),
  ...site("gateway/generate/plan-documents.ts", "({ id, text, salt: corpusSalt }))", {
    "a chat's fragments have no salt": `({ id, text, salt: ${none} }))`,
    "a chat's fragments have the tenant's salt": "({ id, text, salt }))",
  }),
  ...site("gateway/lower/plan.ts", `rootKey(this.#options.card.digest, salt, "span")`, {
    "the root of spans": `rootKey(this.#options.card.digest, ${none}, "span")`,
  }),
  ...site("gateway/lower/plan.ts", "this.spanRoot(document.salt)", {
    "a span's root": `this.spanRoot(${none})`,
  }),
  ...site("gateway/lower/plan.ts", `rootKey(this.#options.card.digest, salt, "main")`, {
    "a main chain's root": `rootKey(this.#options.card.digest, ${none}, "main")`,
  }),
  ...site("gateway/lower/plan.ts", ["`$", "{document.salt} $", "{document.title"].join(""), {
    "spans are remembered without their owner": ["`$", "{document.title"].join(""),
  }),
  ...site("gateway/lower/keyed-texts.ts", ["`$", "{root}$", "{opensPrompt"].join(""), {
    "keyed texts are remembered without their root": ["`$", "{opensPrompt"].join(""),
  }),
  ...site("gateway/lower/chains.ts", `rootKey(card.digest, salt, "main", prompt.endKey)`, {
    "an output's root": `rootKey(card.digest, ${none}, "main", prompt.endKey)`,
  }),
  ...site("gateway/lower/chains.ts", "rootKey(card.digest, origin.salt, origin.kind", {
    "a chain's root": `rootKey(card.digest, ${none}, origin.kind`,
  }),
  ...site("gateway/lower/query-lowerer.ts", "outputRoot(card, salt, prompt)", {
    "an answer's root": `outputRoot(card, ${none}, prompt)`,
  }),
  ...site("gateway/lower/outline-chains.ts", `kind: "span", salt, spanId, parent: this.chain(parent)`, {
    "a fragment behind a preamble": `kind: "span", salt: ${none}, spanId, parent: this.chain(parent)`,
  }),
  ...site("gateway/lower/outline-chains.ts", `kind: "main", salt: this.#context.salt, spanId`, {
    "an output that stands in a prompt": `kind: "main", salt: ${none}, spanId`,
  }),
  ...site("gateway/lower/outline-chains.ts", "this.#builder({ kind, salt, spanId, parent: parentChain", {
    "a prompt or a span of a query": `this.#builder({ kind, salt: ${none}, spanId, parent: parentChain`,
  }),
  ...site("gateway/lower/prompt-outline.ts", "title: query.title, salt: this.#context.salt", {
    "a query's own fragment": `title: query.title, salt: ${none}`,
  }),
  ...site("gateway/execute/run-tree.ts", "return { salt, fragments, outputs:", {
    "a query's texts": `return { salt: ${none}, fragments, outputs:`,
  }),
  ...site("gateway/execute/resolve.ts", "this.fragments.set(id, { id, text, salt })", {
    "a query's fragments of corpora": `this.fragments.set(id, { id, text, salt: ${none} })`,
  }),
  ...site("gateway/execute/query-service.ts", "salt: cacheSalt(tenantId)", { "a query has no salt": `salt: ${none}` }),
  ...site("gateway/compose/queries.ts", "cacheSalt: (tenantId) => tenants.cacheSalt(tenantId, undefined)", {
    "queries have one salt for all": `cacheSalt: () => ${none}`,
  }),
];
