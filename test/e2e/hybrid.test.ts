import { expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createStore, errorOf, openaiClient } from "../support/openai.ts";
import { startTestServer } from "../support/server.ts";
import { writeTinyEmbeddingModel } from "../support/tiny-onnx.ts";

// A server starts in this test.
setDefaultTimeout(60_000);

const meanings = { whale: [1, 0, 0], orca: [1, 0.1, 0], bread: [0, 1, 0], loaf: [0.1, 1, 0], train: [0, 0, 1] };

test("vector stores are searched by words and meaning, with the client's ranking options", async () => {
  const dir = mkdtempSync(join(tmpdir(), "spangate-hybrid-"));
  const folder = join(dir, "meanings");
  writeTinyEmbeddingModel(folder, meanings);
  try {
    await using server = await startTestServer({ model: "one-layer", env: { SPANGATE_EMBEDDING_MODEL: folder } });
    const client = openaiClient(server.url, (await server.tenant("searches")).apiKey);
    const texts = { "sea.txt": "The whale swims.", "bakery.txt": "Fresh bread.", "station.txt": "A train is late." };
    const storeId = await createStore(client, "meanings", texts);
    type Options = NonNullable<Parameters<typeof client.vectorStores.search>[1]["ranking_options"]>;
    const search = async (query: string, options: Options & { hybrid_search?: object } = {}) => {
      const page = await client.vectorStores.search(storeId, { query, max_num_results: 2, ranking_options: options });
      return page.data.map(({ filename }) => filename);
    };
    // Vectors follow a completed file within moments.
    const deadlineMs = Date.now() + 20_000;
    while ((await search("orca")).length < 2 && Date.now() < deadlineMs) await Bun.sleep(20);
    expect((await search("orca"))[0]).toBe("sea.txt");
    expect((await search("loaf", { ranker: "default-2024-11-15" }))[0]).toBe("bakery.txt");
    expect(await search("loaf", { hybrid_search: { embedding_weight: 0, text_weight: 1 } })).toEqual([]);
    expect(await search("whale", { score_threshold: 0.99 })).toEqual(["sea.txt"]);
    const both = search("x", { hybrid_search: { embedding_weight: 0, text_weight: 0 } });
    expect(await errorOf(both)).toMatchObject({ status: 400, param: "ranking_options.hybrid_search" });
    const negative = search("x", { hybrid_search: { embedding_weight: -1, text_weight: 1 } });
    expect(await errorOf(negative)).toMatchObject({ param: "ranking_options.hybrid_search.embedding_weight" });
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});
