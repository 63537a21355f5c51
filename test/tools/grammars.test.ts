/** Where grammars are compiled, and who shares them. */
import { describe, expect, test } from "bun:test";
import { ApiError } from "../../gateway/base/errors.ts";
import { largestGrammar } from "../../gateway/grammar/budget.ts";
import { TaskTimeout } from "../../gateway/threads/pool.ts";
import { answerGrammar } from "../../gateway/tools/answer-grammar.ts";
import type { AnswerRules } from "../../gateway/tools/answer-rules.ts";
import { type CompileElsewhere, Grammars } from "../../gateway/tools/grammars.ts";

const rulesOf = (schema: unknown): AnswerRules => ({ format: { kind: "schema", schema, param: "schema" } });
const person = rulesOf({ type: "object", properties: { name: { type: "string" } }, required: ["name"] });
const mail = rulesOf({ type: "string", format: "email" });
const large = rulesOf({ type: "string", pattern: `^${"a".repeat(300)}$` });
const wide = rulesOf({
  type: "object",
  properties: Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`p${i}`, { enum: [i, `${i}`.repeat(40)] }])),
});

const waiting = new AbortController().signal;

/** Threads in memory: what they are asked is compiled when the test says so. */
function rig(keptBytes?: number) {
  const asked: { readonly tenantId: string; readonly answer: () => void; readonly fail: (error: Error) => void }[] = [];
  const compile: CompileElsewhere = async (tenantId, text, signal) => {
    const { promise, resolve, reject } = Promise.withResolvers<ReturnType<typeof answerGrammar>>();
    signal.addEventListener("abort", () => reject(signal.reason));
    const answer = () => resolve(answerGrammar(JSON.parse(text) as AnswerRules, largestGrammar));
    asked.push({ tenantId, answer, fail: reject });
    return await promise;
  };
  const grammars = new Grammars(compile, keptBytes);
  const made = async (tenantId: string, rules: AnswerRules) => {
    const grammar = grammars.of(tenantId, rules, waiting);
    await Bun.sleep(0);
    asked.at(-1)?.answer();
    return await grammar;
  };
  return { grammars, asked, made };
}

describe("the event loop", () => {
  test("compiles what is small", async () => {
    const { grammars, asked } = rig();
    expect((await grammars.of("a", person, waiting)).symbols.length).toBeGreaterThan(5);
    expect((await grammars.of("a", { format: { kind: "object" } }, waiting)).symbols.length).toBeGreaterThan(5);
    expect(asked).toEqual([]);
  });

  test.each([
    ["a pattern", large],
    ["a format", mail],
    ["many properties", wide],
    ["a long schema", rulesOf({ type: "string", description: "x".repeat(9_000) })],
  ])("leaves %s to a thread, and goes on", async (_what, rules) => {
    const { grammars, asked } = rig();
    const grammar = grammars.of("a", rules, waiting);
    await Bun.sleep(0);
    expect(asked.map(({ tenantId }) => tenantId)).toEqual(["a"]);
    expect(Bun.peek.status(grammar)).toBe("pending");
    asked[0]?.answer();
    expect((await grammar).symbols.length).toBeGreaterThan(5);
  });
});

describe("a grammar is compiled once", () => {
  test("for a tenant, also while it is being compiled; its id names it", async () => {
    const { grammars, asked, made } = rig();
    const both = [grammars.of("a", large, waiting), grammars.of("a", large, waiting)];
    await Bun.sleep(0);
    expect(asked).toHaveLength(1);
    asked[0]?.answer();
    const [first, second] = await Promise.all(both);
    expect(second).toBe(first);
    expect(await grammars.of("a", large, waiting)).toBe(first);
    expect(first?.id).toMatch(/^[\w-]{43}$/);
    expect((await made("a", mail)).id).not.toBe(first?.id);
  });

  test("and for another tenant again, under another name", async () => {
    const { asked, made } = rig();
    const [one, other] = [await made("a", large), await made("b", large)];
    expect(asked.map(({ tenantId }) => tenantId)).toEqual(["a", "b"]);
    expect(other.id).not.toBe(one.id);
    expect(other.symbols).toEqual(one.symbols);
  });

  test("as long as there is room for it", async () => {
    const { symbols } = await rig().made("a", large);
    const { asked, made } = rig(1.5 * symbols.byteLength);
    await made("a", large);
    await made("a", large);
    expect(asked).toHaveLength(1);
    await made("a", rulesOf({ type: "string", pattern: `^${"b".repeat(300)}$` }));
    await made("a", large);
    expect(asked).toHaveLength(3);
  });
});

describe("what fails is not kept", () => {
  const errorOf = async (grammar: Promise<unknown>) => {
    const error = await grammar.then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    return error instanceof ApiError ? [error.code, error.param, error.message] : error;
  };

  test("a schema that cannot be kept: an error with its path, in this thread and in another", async () => {
    const { grammars, made } = rig();
    const refused = ["invalid_value", "schema.items.not", "'schema.items.not': is not supported here."];
    expect(await errorOf(grammars.of("a", rulesOf({ type: "array", items: { not: {} } }), waiting))).toEqual(refused);
    const described = rulesOf({ type: "array", items: { not: {} }, description: "x".repeat(9_000) });
    expect(await errorOf(made("a", described))).toEqual(refused);
    expect(await errorOf(made("a", described))).toEqual(refused);
  });

  test("a thread that took too long, or is lost", async () => {
    const { grammars, asked, made } = rig();
    const slow = errorOf(grammars.of("a", large, waiting));
    await Bun.sleep(0);
    asked[0]?.fail(new TaskTimeout("too long"));
    expect(await slow).toEqual(["overloaded", undefined, "The server is overloaded."]);
    const lost = errorOf(grammars.of("a", large, waiting));
    await Bun.sleep(0);
    asked[1]?.fail(new Error("the thread ended"));
    expect(String(await lost)).toContain("the thread ended");
    expect((await made("a", large)).symbols.length).toBeGreaterThan(5);
  });

  test("one that nobody waits for any more", async () => {
    const { grammars, asked } = rig();
    const [first, second] = [new AbortController(), new AbortController()];
    const both = [first, second].map(({ signal }) => errorOf(grammars.of("a", large, signal)));
    await Bun.sleep(0);
    first.abort(new Error("gone"));
    await Bun.sleep(0);
    expect(both.map((grammar) => Bun.peek.status(grammar))).toEqual(["pending", "pending"]);
    second.abort(new Error("gone too"));
    const anew = grammars.of("a", large, waiting);
    expect((await Promise.all(both)).map(String)).toEqual(["Error: gone too", "Error: gone too"]);
    expect(asked).toHaveLength(2);
    asked[1]?.answer();
    expect((await anew).symbols.length).toBeGreaterThan(5);
  });
});
