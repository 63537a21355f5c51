/** Clients that applications use, from npm as they are, against the server as it is started: one server for them all. */
import { afterAll, beforeAll, setDefaultTimeout } from "bun:test";
import { aiSdk } from "./ai-sdk.ts";
import { anthropic } from "./anthropic.ts";
import { anthropicBatches } from "./anthropic-batches.ts";
import { langchain } from "./langchain.ts";
import { llamaindex } from "./llamaindex.ts";
import { lostWorker } from "./lost-worker.ts";
import { mcp } from "./mcp.ts";
import { openaiBatches } from "./openai-batches.ts";
import { openaiChat } from "./openai-chat.ts";
import { openaiFiles } from "./openai-files.ts";
import { openaiResponses } from "./openai-responses.ts";
import { openaiUploads } from "./openai-uploads.ts";
import { Suite } from "./suite.ts";
import { tools } from "./tools.ts";

// For a machine that has other things to do as well.
setDefaultTimeout(60_000);

const suite = new Suite();
beforeAll(async () => await suite.start());
afterAll(async () => await suite.stop());

openaiChat(suite);
openaiResponses(suite);
openaiFiles(suite);
openaiUploads(suite);
openaiBatches(suite);
aiSdk(suite);
anthropic(suite);
anthropicBatches(suite);
langchain(suite);
llamaindex(suite);
tools(suite);
mcp(suite);
lostWorker(suite);
