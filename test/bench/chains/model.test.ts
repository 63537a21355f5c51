import { expect, test } from "bun:test";
import { join } from "node:path";
import { askChat } from "../../../gateway/cli/support/operations.ts";
import { startTestServer } from "../../support/server.ts";
import { makeChain, readNames } from "./chains.ts";
import { chainRequest, scoreChain } from "./score.ts";

test("the chains model works a short chain off, and says nothing else", async () => {
  await using server = await startTestServer({ env: { SPANGATE_MODEL: join(import.meta.dir, "model") } });
  const { client } = await server.tenant("chains");
  const chain = makeChain(1, { least: 5, most: 5 }, readNames());
  const { text } = await askChat(client, chainRequest(chain, server.model));
  expect(text).toBe(chain.answer);
  expect(scoreChain(chain, text).isWhole).toBe(true);
});
