import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { insertGrant } from "../../../db/corpora.ts";
import type { TenantId } from "../../../db/ids.ts";
import type { Attributes } from "../../../db/schema.ts";
import { type AttributeFilter, passesFilter } from "../../../gateway/corpus/search/attribute-filter.ts";
import { attributeFilterSchema } from "../../../gateway/corpus/search/filters.ts";
import type { RetrieveRequest } from "../../../gateway/corpus/search/retrieve.ts";
import { fc } from "../../support/fast-check.ts";
import { createWorld, ingestText, type World } from "../world.ts";

let world: World;
let tenantId: TenantId;
let first: ReturnType<World["corpus"]["corpora"]["create"]>;
let second: typeof first;

beforeAll(async () => {
  world = createWorld();
  tenantId = world.tenants.create("acme").id;
  first = world.corpus.corpora.create(tenantId, { name: "1", metadata: {} });
  second = world.corpus.corpora.create(tenantId, { name: "2", metadata: {} });
  await ingestText(world, first, "whale.txt", "The whale swims in the sea.", { year: 2001, lang: "en" });
  await ingestText(world, first, "shark.txt", "The shark swims in the sea near the whale.", { year: 2010, lang: "de" });
  await ingestText(world, first, "plain.txt", "Nothing of interest stands here.");
  await ingestText(world, second, "whales.txt", "A whale, a whale, a whale!");
});
afterAll(() => world.remove());

const ask = (change: Partial<RetrieveRequest> = {}) =>
  world.corpus.retrieve({ tenantId, vectorStoreIds: [first.id], query: "whale", maxResults: 10, ...change });
const names = async (change?: Partial<RetrieveRequest>) => (await ask(change)).map((hit) => hit.filename);

describe("retrieve", () => {
  test("over several corpora: best first, each with its own corpus' salt", async () => {
    const hits = await ask({ vectorStoreIds: [first.id, second.id, first.id] });
    expect(hits).toHaveLength(3);
    expect(hits.map((hit) => hit.score)).toEqual(hits.map((hit) => hit.score).sort((a, b) => b - a));
    for (const hit of hits) {
      expect(hit.salt).toBe(world.tenants.corpusSalt(hit.corpusId, 0));
      expect(hit.score).toBe(1);
    }
    expect(new Set(hits.map((hit) => hit.salt)).size).toBe(2);
    expect(await ask({ vectorStoreIds: [first.id, second.id] })).toEqual(hits);
  });

  test("filters, threshold and the number of results are kept", async () => {
    expect((await names({ query: "swims" })).sort()).toEqual(["shark.txt", "whale.txt"]);
    expect(await names({ query: "swims", filters: { type: "lt", key: "year", value: 2005 } })).toEqual(["whale.txt"]);
    expect(await names({ query: "here", filters: { type: "eq", key: "lang", value: "en" } })).toEqual([]);
    expect(await names({ maxResults: 1 })).toHaveLength(1);
    expect(await names({ maxResults: 0 })).toHaveLength(1);
    const [best, next] = await ask({ query: "shark whale" });
    expect(best?.filename).toBe("shark.txt");
    expect(
      await names({ query: "shark whale", scoreThreshold: ((best?.score ?? 0) + (next?.score ?? 0)) / 2 }),
    ).toEqual(["shark.txt"]);
  });

  test("a threshold keeps what holds the question and drops what holds a common word of it", async () => {
    expect(await names({ query: "Does a shark swim near the whale?" })).toEqual(["shark.txt", "whale.txt"]);
    expect(await names({ query: "Does a shark swim near the whale?", scoreThreshold: 0.9 })).toEqual(["shark.txt"]);
    expect(await names({ query: "Does an octopus swim?", scoreThreshold: 0.5 })).toEqual([]);
  });

  test("a corpus that is not the tenant's is unknown, one that was granted is not", async () => {
    const friend = world.tenants.create("friend").id;
    const asFriend = () => names({ tenantId: friend });
    await expect(asFriend()).rejects.toThrow("No such vector store.");
    insertGrant(world.db, first.id, friend, 1);
    expect((await asFriend()).length).toBeGreaterThan(0);
    await expect(names({ vectorStoreIds: [first.id, "vs_unknown"] })).rejects.toThrow("No such vector store.");
    await expect(names({ vectorStoreIds: Array.from({ length: 17 }, (_, i) => `vs_${i}`) })).rejects.toThrow(
      "At most 16",
    );
  });

  test("no words, or none that occur, is an empty answer", async () => {
    for (const query of ["", "???", "unheard", "the \0 \ud800"]) expect(names({ query })).resolves.toBeArray();
    expect(await names({ query: "unheard" })).toEqual([]);
  });
});

describe("passesFilter", () => {
  const attributes: Attributes = { year: 2001, lang: "en", draft: false, zero: 0 };
  const passes = (filter: unknown) => passesFilter(attributeFilterSchema.parse(filter) as AttributeFilter, attributes);

  test("compares by value and by type", () => {
    const yes: readonly unknown[] = [
      { type: "eq", key: "year", value: 2001 },
      { type: "ne", key: "year", value: "2001" },
      { type: "ne", key: "absent", value: 1 },
      { type: "gte", key: "year", value: 2001 },
      { type: "gt", key: "lang", value: "de" },
      { type: "lte", key: "zero", value: 0 },
      { type: "eq", key: "draft", value: false },
      { type: "in", key: "lang", value: ["de", "en"] },
      { type: "nin", key: "lang", value: ["de"] },
      { type: "nin", key: "absent", value: ["de"] },
      {
        type: "or",
        filters: [
          { type: "eq", key: "year", value: 1 },
          { type: "eq", key: "lang", value: "en" },
        ],
      },
    ];
    const no: readonly unknown[] = [
      { type: "eq", key: "year", value: "2001" },
      { type: "eq", key: "zero", value: false },
      { type: "eq", key: "absent", value: false },
      { type: "gt", key: "year", value: 2001 },
      { type: "gt", key: "lang", value: 1 },
      { type: "lt", key: "absent", value: 1 },
      { type: "gt", key: "draft", value: true },
      { type: "in", key: "absent", value: [] },
      { type: "eq", key: "constructor", value: "x" },
      {
        type: "and",
        filters: [
          { type: "eq", key: "lang", value: "en" },
          { type: "eq", key: "year", value: 1 },
        ],
      },
    ];
    for (const filter of yes) expect([filter, passes(filter)]).toEqual([filter, true]);
    for (const filter of no) expect([filter, passes(filter)]).toEqual([filter, false]);
  });

  test("and, or and the pairs of opposites keep their laws", () => {
    const value = fc.oneof(fc.constantFrom("a", "b", "c"), fc.integer({ min: 0, max: 3 }));
    const key = fc.constantFrom("a", "b", "year");
    const comparison = fc.record({
      type: fc.constantFrom("eq", "ne", "gt", "gte", "lt", "lte"),
      key,
      value,
    }) as fc.Arbitrary<AttributeFilter>;
    fc.assert(
      fc.property(comparison, comparison, fc.dictionary(key, value), (one, two, own) => {
        const of = (filter: AttributeFilter) => passesFilter(filter, own);
        expect(of({ type: "and", filters: [one, two] })).toBe(of(one) && of(two));
        expect(of({ type: "or", filters: [one, two] })).toBe(of(one) || of(two));
        if ("value" in one) {
          expect(of({ ...one, type: "eq" })).toBe(!of({ ...one, type: "ne" }));
          const comparable = Object.hasOwn(own, one.key) && typeof own[one.key] === typeof one.value;
          expect(of({ ...one, type: "gt" })).toBe(comparable && !of({ ...one, type: "lte" }));
          expect(of({ ...one, type: "lt" })).toBe(comparable && !of({ ...one, type: "gte" }));
        }
      }),
      { numRuns: 500 },
    );
  });
});

describe("fragments by id", () => {
  const read = (who: TenantId, ...ids: string[]) => world.corpus.readFragments(who, ids).map((found) => found?.text);

  test("come in the order of the ids, with their corpora's salts", async () => {
    const hits = (await ask({ vectorStoreIds: [first.id, second.id] })).toReversed();
    const found = world.corpus.readFragments(
      tenantId,
      hits.map(({ id }) => id),
    );
    const facts = hits.map(({ id, corpusId, fileId, filename, text, salt }) => {
      return { id, corpusId, fileId, filename, text, salt };
    });
    expect(found).toEqual(facts);
  });

  test("of others, unknown ones, and what is no id are all the same: none; a grant shows them", async () => {
    const [hit] = await ask();
    if (hit === undefined) throw new Error("nothing is found");
    const stranger = world.tenants.create("stranger").id;
    const unknown = "frag_000000000000000000000000";
    expect(read(stranger, hit.id, unknown, "frag'); drop table fragments; --", "")).toEqual([
      undefined,
      undefined,
      undefined,
      undefined,
    ]);
    expect(read(tenantId, unknown, hit.id)).toEqual([undefined, hit.text]);
    insertGrant(world.db, first.id, stranger, Date.now());
    expect(read(stranger, hit.id)).toEqual([hit.text]);
  });
});
