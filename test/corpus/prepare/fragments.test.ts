import { afterEach, beforeEach, expect, test } from "bun:test";
import type { ListedFragment } from "../../../db/fragments.ts";
import { corpusLimits } from "../../../gateway/corpus/base/limits.ts";
import { createWorld, ingestText, type World } from "../world.ts";

let world: World;
beforeEach(() => {
  world = createWorld();
});
afterEach(() => world.remove());

/** A store with fragments of about so many tokens. */
async function storeOf(fragmentTokens: number, fragmentCount: number) {
  const tenantId = world.tenants.create("acme").id;
  const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
  const sentence = "This is a sentence of ten words that says nothing. ";
  const text = sentence.repeat((fragmentTokens * fragmentCount) / 10);
  await ingestText(world, store, "a.txt", text, {}, fragmentTokens);
  const listed: (readonly ListedFragment[])[] = [];
  let after: string | undefined;
  for (let hasMore = true; hasMore; ) {
    const page = await world.corpus.fragments.list(tenantId, store.id, { limit: 100, order: "asc", after });
    listed.push(page.rows.map(({ row }) => row));
    after = page.rows.at(-1)?.row.id;
    hasMore = page.hasMore;
  }
  return { pages: listed, text };
}

test("a page of long fragments has fewer of them, and pages together have them all", async () => {
  const { pages, text } = await storeOf(corpusLimits.maxChunkTokens, 40);
  const all = pages.flat();
  expect(pages.length).toBeGreaterThan(1);
  for (const rows of pages) {
    const tokens = rows.reduce((sum, { tokenCount }) => sum + tokenCount, 0);
    expect(tokens).toBeLessThanOrEqual(corpusLimits.maxFragmentPageTokens);
  }
  expect(new Set(all.map(({ id }) => id)).size).toBe(all.length);
  expect(all.map(({ text: part }) => part).join("")).toBe(text);
  // Each was made a span in turns with other work before it was told of.
  expect(world.spans.warmed).toEqual(all.map(({ id }) => id));
});

test("a page of short fragments is as long as asked for", async () => {
  const { pages } = await storeOf(50, 150);
  expect(pages[0]).toHaveLength(100);
});
