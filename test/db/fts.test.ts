import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { statSync } from "node:fs";
import { join } from "node:path";
import { type CorpusRow, insertCorpus } from "../../db/corpora.ts";
import { attachFile, type CorpusFileRow, completeFile } from "../../db/corpus-files.ts";
import { insertFileOnce } from "../../db/files.ts";
import { insertFragments, peekFragments, readHits, removeFragments } from "../../db/fragments.ts";
import {
  createFullText,
  indexFragment,
  matchExpression,
  maxSearchTerms,
  mergeFullText,
  searchFullText as search,
  searchTerms,
} from "../../db/fts.ts";
import { newId } from "../../db/ids.ts";
import { type Db, openDb } from "../../db/open.ts";
import { insertTenant } from "../../db/tenants.ts";
import { Random } from "../native/random.ts";
import { anyCodePoints } from "../support/code-points.ts";
import { fc } from "../support/fast-check.ts";
import { folderMaker } from "../support/new-folder.ts";

const newFolder = folderMaker("spangate-words-");
let db: Db;
let corpusSeq = 0;
/** A page of the database with its head in the log. */
const pageBytes = 4_096 + 24;
let otherSeq = 0;

const texts = [
  "The quick brown fox jumps over the lazy dog.",
  "A fox and a fox and a fox.",
  "Müller lebt in Köln und arbeitet.",
  "東京は日本の首都です。",
  "Nothing to see here.",
  'Quotes " and OR, AND, NOT, NEAR(a b), col: x* ^start -minus.',
];

const createdAt = 1;

function corpusOf(tenantName: string, fragments: readonly string[]) {
  const tenant = insertTenant(db, { id: newId("tenant"), name: tenantName, createdAt });
  const fields = { tenantId: tenant.id, name: "", description: null, metadata: {}, createdAt };
  const corpus = insertCorpus(db, { id: newId("corpus"), ...fields });
  if (corpus === undefined) throw new Error("not inserted");
  return { corpus, attached: addFile(corpus, tenantName, fragments) };
}

function addFile(corpus: CorpusRow, sha256: string, fragments: readonly string[]): CorpusFileRow {
  const fields = { tenantId: corpus.tenantId, createdAt };
  const content = { filename: "a.txt", purpose: "assistants", mediaType: "text/plain", byteCount: 1, sha256 };
  const file = insertFileOnce(db, { id: newId("file"), ...content, ...fields });
  if (file === undefined) throw new Error("not inserted");
  const ids = { corpusId: corpus.id, fileId: file.id, ...fields };
  const attached = attachFile(db, { ...ids, attributes: {}, maxChunkTokens: 16, overlapTokens: 0 });
  const rows = fragments.map((text, ordinal) => {
    return { id: newId("fragment"), ordinal, text, firstChar: 0, endChar: text.length, tokenCount: 1 };
  });
  insertFragments(db, corpus.seq, attached, rows);
  completeFile(db, attached, 1);
  return attached;
}

beforeAll(() => {
  db = openDb(":memory:");
  corpusSeq = corpusOf("a", texts).corpus.seq;
  otherSeq = corpusOf("b", ["The fox of somebody else."]).corpus.seq;
});
afterAll(() => db.close());

const random = new Random(4);
test.each([
  // With the merges that FTS5 makes by itself it is 494; without any it is 1,618 once there are too many segments.
  ["of many words", () => Array.from({ length: 150 }, () => random.integer(0, 1_000_000)).join(" ")],
  // It is 420 where each of the word's places is indexed.
  ["of one word", () => "cell ".repeat(400)],
])("no few fragments %s write many pages of an index, however large it is, and its segments stay few", (_, textOf) => {
  const path = join(newFolder(), "words.db");
  const words = openDb(path);
  createFullText(words, 1);
  const size = () => statSync(`${path}-wal`).size / pageBytes;
  let most = 0;
  for (let piece = 0; piece < 500; piece++) {
    const before = size();
    words.transaction("index", () => {
      for (let i = 1; i <= 8; i++) indexFragment(words, 1, piece * 8 + i, textOf());
      mergeFullText(words, 1);
    });
    most = Math.max(most, size() - before);
  }
  expect(most).toBeLessThan(160);
  const segments = words.client.query<{ n: number }, []>("select count(distinct segid) as n from fts_1_idx").get()?.n;
  expect(segments).toBeLessThan(40);
  words.close();
});

/** With the texts. */
function searchFullText(...asked: Parameters<typeof search>) {
  const hits = search(...asked);
  const rows = readHits(
    db,
    hits.map(({ seq }) => seq),
  );
  return hits.map((hit) => ({ ...hit, text: rows.get(hit.seq)?.text ?? "" }));
}

const found = (query: string, limit = 10) => searchFullText(db, corpusSeq, query, limit).map((hit) => hit.text);

describe("searchFullText", () => {
  test("ranks by bm25, folds case and accents, stems English, and reads scripts without spaces", () => {
    expect(found("fox")).toEqual([texts[1] ?? "", texts[0] ?? ""]);
    expect(found("JUMPING dogs")).toEqual([texts[0] ?? ""]);
    expect(found("muller KOLN")).toEqual([texts[2] ?? ""]);
    expect(found("首都")).toEqual([texts[3] ?? ""]);
    expect(found("都首")).toEqual([]);
    expect(found("unknownword")).toEqual([]);
  });

  test("stays in its corpus, also in how it ranks", () => {
    expect(found("somebody")).toEqual([]);
    const before = searchFullText(db, corpusSeq, "fox quick", 10).map((hit) => hit.bm25);
    corpusOf(
      "noisy",
      Array.from({ length: 200 }, (_, i) => `fox ${i}`),
    );
    expect(searchFullText(db, corpusSeq, "fox quick", 10).map((hit) => hit.bm25)).toEqual(before);
    expect(searchFullText(db, otherSeq, "fox", 10)).toHaveLength(1);
  });

  test("the limit and the files asked for are kept; ties go by age", () => {
    expect(found("fox the quick", 1)).toHaveLength(1);
    expect(searchFullText(db, corpusSeq, "fox", 10, [])).toEqual([]);
    const same = corpusOf(
      "ties",
      Array.from({ length: 8 }, () => "Same words everywhere."),
    );
    const seqs = searchFullText(db, same.corpus.seq, "words", 10).map((hit) => hit.seq);
    expect(seqs).toEqual([...seqs].sort((a, b) => a - b));
  });

  test("the share is what part of the question a fragment holds, each word by how rare it is", () => {
    const ferry = corpusOf("ferry", [
      "The ferry to Oslo sails at six.",
      "The ferry to Bergen sails at nine, and the crew of the ferry sleeps on board the ferry.",
      "The crew sleeps.",
      "Tickets for the ferry are sold on board.",
    ]).corpus.seq;
    const shares = (query: string) =>
      searchFullText(db, ferry, query, 10).map(({ share, text }) => [share, text] as const);
    const [best, ...others] = shares("When does the ferry to Oslo sail?");
    // All of what is asked for is held, and what only asks is not missed.
    expect(best).toEqual([1, "The ferry to Oslo sails at six."]);
    expect(others.length).toBeGreaterThan(0);
    for (const [share] of others) expect(share).toBeLessThan(0.5);
    // By hand: of 4 fragments 1 has "oslo", 3 have "ferry", none has "zebra".
    const weight = (n: number) => Math.log(1 + (4 - n + 0.5) / (n + 0.5));
    const [oslo, ferryWeight, zebra] = [weight(1), weight(3), weight(0)];
    const held = shares("zebra oslo ferry").map(([share]) => share);
    const whole = zebra + oslo + ferryWeight;
    for (const [at, expected] of [oslo + ferryWeight, ferryWeight, ferryWeight].entries()) {
      expect(held[at]).toBeCloseTo(expected / whole, 12);
    }
    expect(held).toHaveLength(3);
    // Words that only ask are all that there is: then they count. More of a word is no larger share.
    expect(shares("the").map(([share]) => share)).toEqual([1, 1, 1, 1]);
    expect(searchFullText(db, ferry, "ferry", 10).map(({ share }) => share)).toEqual([1, 1, 1]);
  });

  test("who holds more of the question comes first, also where bm25 counts its words as nothing", () => {
    const two = corpusOf("two", [
      "Jon Vale has an extension, extension, extension.",
      "The extension of Ann Moss is 12.",
    ]);
    const hits = searchFullText(db, two.corpus.seq, "What is the extension of Ann Moss?", 10);
    expect(hits.map(({ text }) => text.slice(0, 3))).toEqual(["The", "Jon"]);
    expect(hits[0]?.bm25).toBeLessThan(0.001);
    expect(hits.map(({ share }) => share > 0.5)).toEqual([true, false]);
  });

  test("shares are in 0..1, fall from hit to hit, and do not depend on how many hits are wanted", () => {
    const words = fc.array(fc.constantFrom("fox", "the", "lazy", "dog", "quick", "köln", "東京", "unheard", "and"), {
      minLength: 1,
      maxLength: 8,
    });
    fc.assert(
      fc.property(words, (query) => {
        const all = searchFullText(db, corpusSeq, query.join(" "), 20);
        const shares = all.map(({ share }) => share);
        expect(shares).toEqual(shares.toSorted((a, b) => b - a));
        for (const share of shares) expect(share >= 0 && share <= 1).toBe(true);
        expect(searchFullText(db, corpusSeq, query.join(" "), 1)).toEqual(all.slice(0, 1));
      }),
    );
  });

  test("any text is a harmless query", () => {
    const hostile = [
      '"',
      '" OR "',
      "fox*",
      "text:fox",
      "NEAR(fox dog, 2)",
      "fox AND NOT dog",
      "^fox",
      "-fox",
      "'; drop table tenants; --",
      "fox\0dog",
      "{a b}:c",
      "(((",
      "rank MATCH 'x'",
      "\ud800fox",
    ];
    for (const query of hostile) expect(() => found(query)).not.toThrow();
    // An operator is a word like any other.
    expect(found("zzz AND NOT zzz")).toEqual(found("and not"));
    expect(found("and not").length).toBeGreaterThan(0);
    fc.assert(
      fc.property(fc.oneof(anyCodePoints(), fc.string(), fc.stringMatching(/^["'()*:^{}+\-a-z ]{0,40}$/)), (query) => {
        for (const hit of searchFullText(db, corpusSeq, query, 5)) expect(texts).toContain(hit.text);
      }),
      { numRuns: 1_000 },
    );
  });

  test("the expression has quoted words and OR only, and no more than its bound", () => {
    fc.assert(
      fc.property(anyCodePoints({ maxLength: 200 }), (query) => {
        const terms = searchTerms(query);
        if (terms.length > 0) expect(matchExpression(terms)).toMatch(/^"[^"]+"( OR "[^"]+")*$/);
      }),
    );
    expect(searchTerms("?!")).toEqual([]);
    expect(searchTerms(Array.from({ length: 500 }, (_, i) => `w${i}`).join(" "))).toHaveLength(maxSearchTerms);
    expect(searchTerms("a東".repeat(500)).length).toBeLessThanOrEqual(maxSearchTerms);
    expect(searchTerms("Fox FOX fox 東京")).toEqual(['"fox"', '"東 京"']);
  });

  test("a long run of a script without spaces is several phrases, and words have an end", () => {
    expect(searchTerms("東京は日本の首都です。")).toEqual(['"東 京 は 日 本 の 首 都"', '"で す"']);
    expect(searchTerms("字".repeat(16_000))).toEqual(['"字 字 字 字 字 字 字 字"']);
    expect(searchTerms("a\u0903".repeat(8_000)).map((term) => term.length)).toEqual([34]);
    expect(searchTerms("abcdefghij".repeat(1_600)).map((term) => term.length)).toEqual([130]);
  });

  test("words that are nearly everywhere do not widen a search that has rarer ones", () => {
    const many = Array.from({ length: 10_050 }, (_, i) => (i === 10_040 ? "the needle here" : "the hay here"));
    const { corpus, attached } = corpusOf("hay", many);
    const texts = (query: string, limit = 3) => searchFullText(db, corpus.seq, query, limit).map((hit) => hit.text);
    expect(texts("Where is the needle here?")).toEqual(["the needle here"]);
    expect(texts("the here")).toHaveLength(3);
    // Words of nearly all fragments weigh next to nothing, though no more than a part of the corpus is looked at.
    const [needle, hay] = searchFullText(db, corpus.seq, "needle haystack here", 3);
    expect([needle?.share, hay]).toEqual([expect.closeTo(0.5, 1), undefined]);
    expect(searchFullText(db, corpus.seq, "where is the hay needle", 1)[0]).toMatchObject({ text: "the needle here" });
    // Attached later, found through a filter all the same.
    const late = addFile(corpus, "late", ["the hay of another file"]);
    const filtered = (seq: number) => searchFullText(db, corpus.seq, "the hay", 50, [seq]).map((hit) => hit.text);
    expect(filtered(late.seq)).toEqual(["the hay of another file"]);
    expect(filtered(attached.seq)).toHaveLength(50);
  });

  test("what is removed is out of the index, whatever its text", () => {
    let corpusCount = 0;
    fc.assert(
      fc.property(fc.uniqueArray(anyCodePoints({ maxLength: 60 }), { maxLength: 6 }), (odd) => {
        const { corpus, attached } = corpusOf(`odd ${corpusCount++}`, [...odd, "Stays here."]);
        const all = peekFragments(db, attached.seq, 100);
        removeFragments(db, corpus.seq, all.slice(0, -1));
        const left = searchFullText(db, corpus.seq, `${odd.join(" ")} stays`, 50);
        expect(left.map((hit) => hit.text)).toEqual(["Stays here."]);
        db.client.run(`insert into fts_${corpus.seq} (fts_${corpus.seq}) values ('integrity-check')`);
      }),
      { numRuns: 50 },
    );
  });
});
