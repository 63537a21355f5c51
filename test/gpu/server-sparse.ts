/**
 * Sparse decoding on a GPU as users have it. `bun test/gpu/server-sparse.ts [engine|server|speed]... [MODEL]`, DEVICES: cuda:0
 * unless given (cpu tries this program without a GPU); MODEL: a folder of the 8B shape, for speed; NVIDIA's libraries in the
 * loader's path. Writes $OUT/server-sparse.json.
 *   engine  the worker's backend, opened by its settings: rows that choose all they see answer what dense ones do, but where
 *           two tokens are as good as each other
 *   server  the demo model's server: what answers say of their choices, and what is refused
 *   speed   eight answers over 32k tokens each, dense and choosing 2,048, through the API
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import { HttpClient } from "../../gateway/cli/support/client.ts";
import { askChat, type ChatAnswer } from "../../gateway/cli/support/operations.ts";
import { parseWorkerConfig } from "../../worker/config.ts";
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { SubmitMessage, TokenLogprob, WorkerMessage } from "../../worker/contract/messages.ts";
import type { SparseReport } from "../../worker/contract/sparse.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { openBackend } from "../../worker/open-backend.ts";
import { SpanTexts } from "../bench/support/prompts.ts";
import { median } from "../bench/support/stats.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { assertThat, Report } from "./report.ts";
import { logitRounding } from "./sparse-backend.ts";

const { DEVICES: device = "cuda:0", OUT: outFolder } = process.env;
const given = process.argv.slice(2);
const largeModel = given.find((argument) => argument.includes("/"));
const parts = given.filter((argument) => !argument.includes("/"));
const isWanted = (part: string) => parts.length === 0 || parts.includes(part);
const isCuda = device !== "cpu";
const report = new Report();
const texts = new SpanTexts();
const engineAnswers = 16;
const demo = { layers: 8, kvHeads: 2 } as const;

/** What answers say of it; the fields that are looked at here. */
interface Facts {
  readonly mode: string;
  readonly selected_tokens: number;
  readonly steps: number;
  readonly dense_steps: number;
  readonly refreshes: number;
  readonly changed: number;
  readonly rectified_tokens: number;
}
const factsOf = ({ spangate }: ChatAnswer): Facts | undefined => (spangate as { readonly sparse?: Facts }).sparse;

/** Facts, one of which is asked for. */
function promptOf(seed: number): string {
  const facts = Array.from({ length: 90 }, (_, i) => `The extension of guest ${i} is ${3000 + seed * 100 + 7 * i}.`);
  return `${facts.join(" ")} What is the extension of guest ${(7 * seed) % 90}?`;
}

async function answersOfEngine(): Promise<string> {
  const env = { SPANGATE_SPARSE: "now", SPANGATE_SPARSE_TOKENS: "8192", SPANGATE_SPARSE_FROM: "0" };
  const config = parseWorkerConfig({ SPANGATE_MODEL: demoModelFolder, SPANGATE_DEVICE: device, ...env });
  const { backend, model } = await openBackend(config);
  const jsonOf = (name: string) => JSON.parse(readFileSync(join(demoModelFolder, name), "utf8"));
  const tokenizer = new Tokenizer(jsonOf("tokenizer.json"), jsonOf("tokenizer_config.json"));
  const idsOf = (seed: number) => {
    const prompt = `<|im_start|>user\n${promptOf(seed)}<|im_end|>\n<|im_start|>assistant\n`;
    return Int32Array.from(tokenizer.encode(prompt, { add_special_tokens: false }).ids);
  };
  const answers = new Map<string, TokenLogprob[]>();
  const reports = new Map<string, SparseReport | undefined>();
  const emit = (message: WorkerMessage) => {
    if (message.type === "tokens") answers.get(message.requestId)?.push(...(message.logprobs ?? []));
    if (message.type === "finished") reports.set(message.requestId, message.sparse);
    if (message.type === "failed") throw new Error(message.message);
  };
  const engine = new Engine({
    ...{ backend, eosTokenIds: model.eosTokenIds, limits: config, clock: () => performance.now(), emit },
    sparse: { fromTokens: 0, mostCost: Number.POSITIVE_INFINITY },
  });
  // The first answers compute the prompts that the others find.
  for (const [name, tokens] of [
    ["first", undefined],
    ["dense", undefined],
    ["all", 8_192],
    ["again", undefined],
    ["few", 128],
  ] as const) {
    for (let seed = 0; seed < engineAnswers; seed++) {
      answers.set(`${name}-${seed}`, []);
      engine.submit(submitOf(`${name}-${seed}`, idsOf(seed), tokens));
    }
    while (await engine.step());
  }
  await backend.dispose();
  const all = [...reports].filter(([id]) => id.startsWith("all"));
  for (const [id, one] of all) {
    const lists = (one?.steps ?? 0) * demo.layers * demo.kvHeads;
    assertThat(one !== undefined && one.steps > 40 && one.lists === lists, `${id}: ${JSON.stringify(one)}`);
  }
  const parted = (name: string) => partings(answers, name);
  const words = [
    `rows that choose everything: ${partingWords(parted("all"))}`,
    `dense ones again: ${partingWords(parted("again"))}`,
    `rows that choose 128: ${partingWords(parted("few"))}`,
    `${all.reduce((sum, [, one]) => sum + (one?.steps ?? 0), 0)} rows chose everything`,
  ].join("; ");
  assertThat(
    parted("all").every((gap) => gap < 2 * logitRounding),
    words,
  );
  return words;
}

/** Of answers that are not the dense ones: how far the two best tokens of the dense row were apart where they part. */
function partings(answers: ReadonlyMap<string, readonly TokenLogprob[]>, name: string): number[] {
  return Array.from({ length: engineAnswers }, (_, seed) => {
    const [dense, other] = ["dense", name].map((arm) => answers.get(`${arm}-${seed}`) ?? []);
    const at = dense?.findIndex(({ tokenId }, i) => tokenId !== other?.[i]?.tokenId) ?? -1;
    const [best, second] = dense?.[at]?.top ?? [];
    return at < 0 ? [] : [(best?.[1] ?? Number.NaN) - (second?.[1] ?? Number.NaN)];
  }).flat();
}

const partingWords = (gaps: readonly number[]): string =>
  `${engineAnswers - gaps.length} of ${engineAnswers} as dense${gaps.length > 0 ? `, parted where two tokens were ${gaps.map((gap) => gap.toFixed(3)).join(", ")} apart` : ""}`;

function submitOf(requestId: string, tokenIds: Int32Array, tokens: number | undefined): SubmitMessage {
  const root = rootKey("sparse", "salt" as CacheSalt, "main");
  const blockKeys = runBlockKeys(root, tokenIds, 16, false);
  const run = { kind: "main", tokenIds, position: 0, sees: [], blockKeys, rootKey: root } as const;
  const params = {
    maxTokens: 64,
    minTokens: 64,
    ignoreEos: true,
    stopTokenIds: [],
    sampling: { ...greedySampling, topLogprobs: 2 },
  };
  const sparse = tokens === undefined ? {} : { sparse: { mode: "now", tokens } as const };
  return { type: "submit", requestId, plan: { runs: [run] }, params, reuse: true, ...sparse };
}

const ask = (server: TestServer, apiKey: string, content: string, sparse: unknown, answerTokens: number) =>
  askChat(new HttpClient({ url: server.url, apiKey }), {
    ...{ model: server.model, messages: [{ role: "user", content }], temperature: 0, ignore_eos: true },
    ...{ max_tokens: answerTokens, min_tokens: answerTokens, spangate: { sparse } },
  });

const open = (env: Readonly<Record<string, string>>) =>
  startTestServer({
    env: { SPANGATE_DEVICES: device, SPANGATE_SPARSE: "now", ...env },
    onLog: (text) => void process.stderr.write(text),
  });

async function answersOfServer(): Promise<string> {
  await using server = await open({ SPANGATE_SPARSE_FROM: "256", SPANGATE_SPARSE_TOKENS: "1024" });
  const { apiKey, client } = await server.tenant("one");
  const [count, answerTokens] = [8, 96];
  const seeds = Array.from({ length: count }, (_, seed) => seed);
  const askAll = (sparse: unknown) =>
    Promise.all(seeds.map((seed) => ask(server, apiKey, promptOf(seed), sparse, answerTokens)));
  const dense = await askAll(false);
  const chosen = await askAll({ tokens: 256 });
  const again = await askAll(false);
  assertThat(
    dense.every((one) => factsOf(one) === undefined),
    "a dense answer tells of choices",
  );
  for (const one of chosen) {
    const facts = factsOf(one);
    const { steps = 0, dense_steps: denseSteps = 0, refreshes = 0, changed = 0 } = facts ?? {};
    assertThat(facts?.mode === "now" && facts.selected_tokens === 256, JSON.stringify(facts));
    assertThat(steps > 80 && steps + denseSteps === answerTokens, JSON.stringify(facts));
    if (isCuda) assertThat(refreshes === steps * demo.layers * demo.kvHeads && changed === 0, JSON.stringify(facts));
  }
  const refused = await client
    .json("POST", "/v1/chat/completions", {
      ...{ model: server.model, messages: [{ role: "user", content: "?" }], spangate: { sparse: { mode: "ahead" } } },
    })
    .then(
      () => "nothing",
      (error: Error) => error.message,
    );
  assertThat(/this server has now, not ahead/.test(refused), `ahead is refused by ${refused}`);
  const same = (answers: readonly ChatAnswer[]) => answers.filter(({ text }, i) => text === dense[i]?.text).length;
  const prompt = dense[0]?.usage.prompt_tokens;
  return `${same(chosen)} of ${count} answers over ${prompt} tokens as dense with 256 chosen, ${same(again)} dense ones again; ${JSON.stringify(factsOf(chosen[0] as ChatAnswer))}`;
}

/** Answers of eight tenants at the same time, whose prompts are there. @returns milliseconds of a token, the median */
async function tokenMs(asks: readonly ((sparse: unknown) => Promise<ChatAnswer>)[], sparse: unknown) {
  const answers = await Promise.all(asks.map((one) => one(sparse)));
  const each = answers.map(({ totalMs, clientTtftMs, usage }) => {
    return (totalMs - clientTtftMs) / (usage.completion_tokens - 1);
  });
  return { ms: median(each), answers };
}

async function speedOfServer(model: string): Promise<string> {
  const [count, promptTokens, answerTokens] = [8, 32_700, 321];
  await using server = await open({ SPANGATE_MODEL: model, SPANGATE_MAX_RUNNING: "16" });
  const tenants = await Promise.all(Array.from({ length: count }, (_, i) => server.tenant(`t${i}`)));
  const asks = tenants.map(({ apiKey }, seed) => {
    const text = texts.textOf(promptTokens, seed + 1);
    return (sparse: unknown) => ask(server, apiKey, text, sparse, sparse === undefined ? 1 : answerTokens);
  });
  const beganMs = performance.now();
  await Promise.all(asks.map((one) => one(undefined)));
  const prefillMs = performance.now() - beganMs;
  const dense = await tokenMs(asks, false);
  const chosen = await tokenMs(asks, true);
  const denseAgain = await tokenMs(asks, false);
  const chosenAgain = await tokenMs(asks, true);
  const facts = chosen.answers.map(factsOf);
  assertThat(
    facts.every((one) => one !== undefined && one.steps > 0.9 * answerTokens),
    JSON.stringify(facts),
  );
  const [denseMs, sparseMs] = [Math.min(dense.ms, denseAgain.ms), Math.min(chosen.ms, chosenAgain.ms)];
  const figures = [
    report.figure("prompts.ms", prefillMs),
    report.figure("dense.msPerToken", denseMs),
    report.figure("now.msPerToken", sparseMs),
    report.figure("dense.over.now", denseMs / sparseMs),
  ];
  const all = [dense, chosen, denseAgain, chosenAgain].map(({ ms }) => ms.toFixed(2)).join(", ");
  return `${figures.join("; ")} (dense, now, dense, now: ${all}); ${JSON.stringify(facts[0])}`;
}

if (isWanted("engine")) await report.check("the worker's backend, opened by its settings", answersOfEngine);
if (isWanted("server")) await report.check("the demo model's server", answersOfServer);
if (isWanted("speed") && largeModel) {
  await report.check(`eight answers over 32k tokens, ${largeModel}`, () => speedOfServer(largeModel));
}
process.exit(await report.end(outFolder && join(outFolder, `server-sparse-${parts.join("-")}.json`)));
