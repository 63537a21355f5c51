/** Span queries over the real engine and the fake backend, whose every token depends on all it may see. */
import { describe, expect, test } from "bun:test";
import type { GeneratedOutput, LoweredGenerate, QueryContext } from "../../gateway/lower/query-context.ts";
import type { Generate, Query, Repeat } from "../../gateway/query/ir.ts";
import { TinyWorld } from "../engine/harness.ts";
import { referenceAnswer } from "../engine/reference.ts";
import {
  behind,
  contextOf,
  fragment,
  g,
  lowererOf,
  plus,
  repeat,
  seq,
  submitOf,
  system,
  user,
} from "../lower/query-rig.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import { models } from "../text/models.ts";

const blockTokens = 4;
const shape = { vocabSize: 300, contextTokens: 4_096, blockTokens, blockCount: 2_048 };
const inners = (query: Query): readonly (Generate | Repeat)[] => {
  if (query.kind === "generate" || query.kind === "repeat") return [query];
  if (query.kind === "message" || query.kind === "fragment") return [];
  return "children" in query ? query.children.flatMap(inners) : [];
};
const tokenCount = (lowered: LoweredGenerate) => lowered.plan.runs.reduce((sum, run) => sum + run.tokenIds.length, 0);

/** Runs every generate of a query as a request of its own, inner ones first. */
class QueryWorld {
  readonly world = new TinyWorld({
    backend: new FakeBackend(shape),
    limits: { maxRunningRequests: 8, maxWaitingRequests: 64, stepTokens: 256 },
  });
  readonly #rig = lowererOf(models.chatml, { blockTokens });
  readonly #outputs = new Map<Generate | Repeat, readonly GeneratedOutput[]>();
  readonly #reuse: boolean;
  #submitted = 0;

  constructor(reuse: boolean) {
    this.#reuse = reuse;
  }

  async lower(generate: Generate): Promise<LoweredGenerate> {
    for (const node of inners(generate.input)) if (!this.#outputs.has(node)) await this.#runInner(node);
    const context: QueryContext = {
      ...contextOf(this.#rig.tokenizer),
      outputs: (node) => this.#outputs.get(node) ?? [],
    };
    return this.#rig.lowerer.lower(generate, context);
  }

  async run(lowered: LoweredGenerate, seed = 0) {
    this.#submitted += 1;
    const submit = submitOf(lowered, 12, this.#reuse);
    const sampling = { ...submit.params.sampling, temperature: 1, seed };
    const message = { ...submit, requestId: `r${this.#submitted}`, params: { ...submit.params, sampling } };
    this.world.engine.submit(message);
    await this.world.settle();
    const { usage, spans, blend } = this.world.finishedOf(message.requestId);
    return { message, tokenIds: this.world.tokensOf(message.requestId), usage, spans, blend };
  }

  async #runInner(node: Generate | Repeat): Promise<void> {
    const [generate, count] = node.kind === "repeat" ? [node.generate, node.n] : [node, 1];
    const outputs: GeneratedOutput[] = [];
    for (let seed = 0; seed < count; seed++) {
      const { tokenIds } = await this.run(await this.lower(generate), seed);
      outputs.push({ tokenIds: Int32Array.from(tokenIds), known: true });
    }
    this.#outputs.set(node, outputs);
  }
}

const input = seq(system("be brief"), user("the thing in the row"), plus(fragment("a"), user("another")));
const other = seq(user("the user"), fragment("b"));
const shown = (prompt: Query, node = g(prompt, { expose: "output" })) => seq(prompt, node);
const deep = seq(plus(shown(input)), user("what of it"));
const queries: Readonly<Record<string, Query>> = {
  "outputs behind their prompts": plus(shown(input), shown(other), fragment("c")),
  "outputs alone": plus(g(input, { expose: "output" }), fragment("c"), g(other, { expose: "output" })),
  samples: plus(seq(input, repeat(3, g(input, { expose: "output" })))),
  "three deep": plus(shown(deep), fragment("c")),
};

describe("over the real engine", () => {
  for (const [name, query] of Object.entries(queries)) {
    test(`${name}: only the outer generate's own messages are computed, and the answer is that of a cold start`, async () => {
      const outer = g(seq(system("a judge"), query, user("Who is right?")));
      const warm = new QueryWorld(true);
      const lowered = await warm.lower(outer);
      const answer = await warm.run(lowered);
      // Fragment c is new as well.
      const spans = new Set(lowered.plan.runs.flatMap(({ spanId }) => spanId ?? []));
      expect(spans.size).toBeGreaterThan(1);
      expect(answer.spans.map(({ id, source }) => `${id} ${source}`)).toEqual(
        [...spans].map((id) => `${id} ${id === "c" ? "computed" : "device"}`),
      );
      const cold = new QueryWorld(false);
      const coldLowered = await cold.lower(outer);
      const coldAnswer = await cold.run(coldLowered);
      expect(coldAnswer.usage.cachedTokens).toBe(0);
      expect(coldLowered).toEqual(lowered);
      expect(coldAnswer.tokenIds).toEqual(answer.tokenIds);
      expect(answer.tokenIds).toEqual(referenceAnswer(answer.message, { ...shape, kvBytesPerBlock: 1 }, [0]).tokenIds);
    });
  }

  test("what is prepared while outputs are missing is found when they are there", async () => {
    const query = g(
      seq(system("a judge"), behind(user("p"), fragment("b")), plus(shown(input), fragment("c")), user("u")),
    );
    const world = new QueryWorld(true);
    const { lowerer, tokenizer } = lowererOf(models.chatml, { blockTokens });
    const early = lowerer.lower(
      query,
      contextOf(tokenizer, () => undefined),
    );
    const prepared = lowerer.preparable(early);
    if (prepared === undefined) throw new Error("nothing can be prepared");
    const params = { ...submitOf(early).params, maxTokens: 0 };
    world.world.engine.submit({ type: "submit", requestId: "p", plan: prepared, params, reuse: true });
    await world.world.settle();
    world.world.finishedOf("p");
    const lowered = await world.lower(query);
    const tail = lowered.plan.runs.filter((run) => run.kind === "main").slice(1);
    const { usage } = await world.run(lowered);
    expect(usage.cachedTokens).toBe(tokenCount(lowered) - tail.reduce((sum, run) => sum + run.tokenIds.length, 0));
  });

  test("order of the spans and what stands beside an output changes the answer, not the output's blocks", async () => {
    const node = g(input, { expose: "output" });
    const world = new QueryWorld(true);
    const first = await world.run(await world.lower(g(seq(plus(shown(input, node), fragment("c")), user("u")))));
    const lowered = await world.lower(g(seq(plus(fragment("c"), shown(input, node)), user("u"))));
    const second = await world.run(lowered);
    expect(second.tokenIds).not.toEqual(first.tokenIds);
    const own = lowered.plan.runs
      .filter((run) => run.kind === "main")
      .reduce((sum, run) => sum + run.tokenIds.length, 0);
    expect(second.usage.cachedTokens).toBeGreaterThanOrEqual(tokenCount(lowered) - own);
  });

  test("blended: copies come from fragments and outputs as they are kept; with all computed again it is the exact prompt", async () => {
    const inner = g(input);
    const body = seq(system("a judge"), fragment("b"), user("then"), inner, fragment("c"), user("Who is right?"));
    const asked = (ratio: number | undefined) =>
      g(body, ratio === undefined ? {} : { reuse: "blend", recomputeRatio: ratio });
    const world = new QueryWorld(true);
    const exact = await world.run(await world.lower(asked(undefined)));
    const whole = await world.run(await world.lower(asked(1)));
    expect(whole.tokenIds).toEqual(exact.tokenIds);
    const lowered = await world.lower(asked(0.25));
    const copied = lowered.plan.runs.flatMap((run) => run.blend?.copies ?? []);
    const copiedTokens = copied.reduce((sum, copy) => sum + copy.tokenCount, 0);
    const { blend, spans } = await world.run(lowered);
    expect(copied.length).toBe(3);
    expect(blend).toEqual({ copiedTokens, recomputedTokens: Math.ceil(copiedTokens / 4) });
    expect(spans.every(({ source }) => source === "device")).toBe(true);
  });
});
