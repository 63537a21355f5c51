/** Grammars that take long to follow, beside requests of another tenant: what a step and the others feel of them. */
import { describe, expect, test } from "bun:test";
import type { ByteGrammar } from "../../worker/contract/grammar.ts";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import { defaultEngineLimits } from "../../worker/engine/limits.ts";
import { demoVocabulary } from "../grammar/adversary.ts";
import { schemaGrammar } from "../grammar/compile.ts";
import { pairs } from "../grammar/pairs.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { TinyWorld } from "./harness.ts";
import { countUp, submitPlan } from "./plans.ts";

const { vocabulary } = demoVocabulary();
const shape = { vocabSize: vocabulary.ends.length, blockCount: 1_024, contextTokens: 256 };
const { stepMaskWork } = defaultEngineLimits;
/** A byte is read as a whole, whatever it takes. */
const workOfByte = 300_000;
const sampling = { temperature: 2, seed: 7 };
const [attacker, other] = [1, 2];

function worldOf(): TinyWorld {
  const world = new TinyWorld({ shape, limits: { maxRunningRequests: 64, maxWaitingRequests: 64, stepTokens: 512 } });
  world.engine.constraints.setVocabulary(vocabulary);
  return world;
}

interface Asked {
  readonly owner: number;
  readonly grammar?: ByteGrammar;
  readonly maxTokens: number;
}

function ask(world: TinyWorld, requestId: string, { owner, grammar, maxTokens }: Asked): void {
  const params = { maxTokens, ...(grammar === undefined ? { ignoreEos: true } : { grammar }) };
  const message = submitPlan(requestId, { question: countUp(requestId.length * 7, 9) }, { params, sampling });
  const owners: SubmitMessage["owners"] = { owners: [{ number: owner }], ofRun: Uint16Array.of(0) };
  world.engine.submit({ ...message, owners });
}

/** Steps until all have ended; no step works longer on masks than it may. @returns tokens of `watched` at each step */
async function settle(world: TinyWorld, watched: string): Promise<number[]> {
  const counts: number[] = [];
  for (let steps = 0, spent = 0; await world.step(); steps++) {
    expect(world.engine.maskSlices.spentWork - spent).toBeLessThan(stepMaskWork + workOfByte);
    spent = world.engine.maskSlices.spentWork;
    counts.push(world.tokensOf(watched).length);
    expect(steps).toBeLessThan(5_000);
  }
  return counts;
}

/** Every step brings the request a token until it has all. */
function expectFlow(counts: readonly number[], tokens: number): void {
  const first = counts.findIndex((count) => count > 0);
  expect(first).toBeLessThan(4);
  expect(counts.slice(first, first + tokens)).toEqual(Array.from({ length: tokens }, (_, i) => i + 1));
}

const ends = (world: TinyWorld, ids: readonly string[]) =>
  new Set(ids.map((id) => world.failedOf(id)?.code ?? world.finishedOf(id).reason));
const idsOf = (name: string, count: number) => Array.from({ length: count }, (_, i) => `${name}${i}`);

describe("anyOf of 250 patterns", () => {
  test("in six choices that share nothing: another tenant has a token of each step", async () => {
    const world = worldOf();
    const choices = idsOf("attack", 6);
    for (const id of choices) ask(world, id, { owner: attacker, grammar: pairs(250), maxTokens: 40 });
    ask(world, "plain", { owner: other, maxTokens: 100 });
    expectFlow(await settle(world, "plain"), 100);
    expect(world.finishedOf("plain").reason).toBe("length");
    expect(ends(world, choices)).toEqual(new Set(["grammar_too_ambiguous"]));
    expect(world.engine.constraints.size.grammars).toBe(0);
  });

  test("in sixteen choices, twice: masks are made once for each, and nothing is lost", async () => {
    const world = worldOf();
    const choices = ["first", "second"].flatMap((id) => idsOf(id, 16));
    for (const id of choices) {
      ask(world, id, { owner: attacker, grammar: { ...pairs(250), id: id.replace(/\d+/, "") }, maxTokens: 40 });
    }
    ask(world, "plain", { owner: other, maxTokens: 100 });
    expectFlow(await settle(world, "plain"), 100);
    expect(ends(world, choices)).toEqual(new Set(["grammar_too_ambiguous"]));
    expect(world.engine.maskSlices.spentWork).toBeLessThan(150_000_000);
    // What was computed for the other is still there.
    const stored = residentKeys(world.engine).length;
    expect(stored).toBeGreaterThan(0);
  });

  test("that can be followed are answered, and another tenant's schema is followed at once", async () => {
    const world = worldOf();
    const choices = idsOf("attack", 6);
    for (const id of choices) ask(world, id, { owner: attacker, grammar: pairs(30), maxTokens: 10 });
    const schema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
    ask(world, "schema", { owner: other, grammar: { ...schemaGrammar(schema), id: "other" }, maxTokens: 12 });
    expectFlow(await settle(world, "schema"), 12);
    for (const id of choices) expect(world.finishedOf(id).usage.completionTokens).toBeGreaterThan(0);
    // Their masks did not fit into as many steps as they have tokens.
    expect(world.engine.maskSlices.spentWork).toBeGreaterThan(20 * stepMaskWork);
  });
});
