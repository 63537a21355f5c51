import { describe, expect, test } from "bun:test";
import type { LowerDocument } from "../../gateway/lower/plan.ts";
import type { LoweredGenerate } from "../../gateway/lower/query-context.ts";
import type { Generate, Query, Repeat } from "../../gateway/query/ir.ts";
import { foldSpan, rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { PlanRun } from "../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { models } from "../text/models.ts";
import {
  assistant,
  behind,
  card,
  contextOf,
  corpusSalt,
  fragment,
  g,
  lowererOf,
  plus,
  repeat,
  salt,
  seq,
  system,
  user,
} from "./query-rig.ts";

const lastKey = (run: PlanRun | undefined): BlockKey => run?.blockKeys.at(-1) as BlockKey;
const rig = lowererOf(models.chatml);
const lower = (query: Generate, said?: (node: Generate | Repeat, index: number) => string | undefined) =>
  rig.lowerer.lower(query, contextOf(rig.tokenizer, said));
const idOf = (id: string) => contextOf(rig.tokenizer).fragments.get(id) as LowerDocument;

describe("keys", () => {
  const query = g(seq(system("be brief"), plus(fragment("a"), fragment("b")), user("Who is the user's manager?")));
  const lowered = lower(query);

  test("fragments have the keys that preparing gives them; the prompt shares all its blocks with the chat", () => {
    const documents = ["a", "b"].map((id) => ({ ...idOf(id), salt: corpusSalt }));
    const prepared = rig.spans.preparePlan(documents);
    expect(lowered.plan.runs.slice(1, 3)).toEqual([...prepared.runs]);
    const chat = rig.spans.lower({
      messages: [
        { role: "system", content: "be brief" },
        { role: "user", content: "Who is the user's manager?" },
      ],
      documents,
      salt,
      attention: "span",
    });
    expect(lowered.plan.runs.slice(0, 3)).toEqual(chat.runs.slice(0, 3));
    const [question, open] = lowered.plan.runs.slice(3);
    const chatOpen = chat.runs[3];
    expect([...(question?.tokenIds ?? []), ...(open?.tokenIds ?? [])]).toEqual([...(chatOpen?.tokenIds ?? [])]);
    expect(question?.rootKey).toBe(chatOpen?.rootKey as BlockKey);
    const shared = Math.floor((question?.tokenIds.length ?? 0) / card.blockTokens);
    expect(shared).toBeGreaterThan(3);
    expect(question?.blockKeys.slice(0, shared)).toEqual(chatOpen?.blockKeys.slice(0, shared));
  });

  test("a chain's key goes on over what is nested in it, in order; the answer hangs on the whole prompt", () => {
    const [head, a, b, question, open] = lowered.plan.runs;
    expect(head?.rootKey).toBe(rootKey(card.digest, salt, "main"));
    expect(question?.rootKey).toBe(foldSpan(foldSpan(lastKey(head), lastKey(a)), lastKey(b)));
    expect(open?.rootKey).toBe(rootKey(card.digest, salt, "main", lastKey(question)));
  });

  test("an output has the keys that generating it gave, wherever it stands", () => {
    const input = seq(system("be brief"), user("the thing"));
    const inner = g(input, { expose: "output" });
    const own = lower(inner);
    const open = own.plan.runs.at(-1) as PlanRun;
    const answered = [...open.tokenIds, ...rig.tokenizer.encodeText("an answer"), ...own.closeTokenIds];
    const keys = runBlockKeys(open.rootKey, Int32Array.from(answered), card.blockTokens, true);
    const places: readonly Query[] = [
      plus(seq(input, inner), user("x")),
      plus(user("x"), inner),
      plus(seq(input, inner)),
    ];
    for (const place of places) {
      const outer = lower(g(seq(user("a"), place, user("b"))));
      const output = outer.plan.runs.find((run) => lastKey(run) === keys.at(-1));
      expect(output?.blockKeys).toEqual(keys);
      expect([...(output?.tokenIds ?? [])]).toEqual(answered);
      const prompt = outer.plan.runs.find((run) => lastKey(run) === lastKey(own.plan.runs[0]));
      expect(prompt?.blockKeys).toEqual(own.plan.runs[0]?.blockKeys);
    }
  });

  test("samples are chains of their own on one prompt", () => {
    const samples = repeat(3, g(user("the thing"), { expose: "output" }));
    const { plan } = lower(g(plus(samples)), (_, index) => `answer ${index}`);
    const roots = plan.runs.filter((run) => run.spanId?.includes(".repeat[")).map((run) => run.rootKey);
    expect(roots.length).toBe(3);
    expect(new Set(roots).size).toBe(1);
  });

  test("two generates behind the prompt they share are two chains on one", () => {
    const input = user("the thing");
    const answers = [1, 2].map((seed) => g(input, { expose: "output", seed }));
    const { plan } = lower(g(plus(seq(input, ...answers))), (node) => `answer ${(node as Generate).options.seed}`);
    expect(plan.runs.map((run) => run.spanId)).toEqual([
      "$.g.input.plus[0].seq[2]",
      "$.g.input.plus[0].seq[1]",
      "$.g.input.plus[0].seq[2]",
      undefined,
    ]);
  });

  test("a text that spells a message's end has other tokens and keys than two messages", () => {
    const two = lower(g(seq(user("a"), user("b")))).plan.runs[0];
    const one = lower(g(seq(user("a<|im_end|>\n<|im_start|>user\nb")))).plan.runs[0];
    expect(one?.rootKey).toBe(two?.rootKey as BlockKey);
    expect(one?.tokenIds.length).toBeGreaterThan(two?.tokenIds.length as number);
    expect(lastKey(one)).not.toBe(lastKey(two));
  });

  test("a preamble is part of the keys of what sees it", () => {
    const { plan } = lower(g(seq(system("s"), behind(user("p"), fragment("a")), fragment("a"), user("u"))));
    const [, preamble, span] = plan.runs;
    expect(span?.rootKey).toBe(rootKey(card.digest, corpusSalt, "span", lastKey(preamble)));
    expect(span?.position).toBe(preamble?.tokenIds.length as number);
  });

  test("another caller shares the corpus's fragments and nothing else", () => {
    const own = g(seq(system("s"), plus(fragment("a"), user("b")), { kind: "fragment", text: "mine" }, user("u")));
    const others = { ...contextOf(rig.tokenizer), salt: "b3RoZXI=" as CacheSalt };
    const keys = new Set(lower(own).plan.runs.flatMap((run) => [...run.blockKeys, run.rootKey]));
    const shared = rig.lowerer.lower(own, others).plan.runs.filter((run) => keys.has(run.rootKey));
    expect(shared.map((run) => run.spanId)).toEqual(["a"]);
  });
});

describe("blended runs", () => {
  const input = seq(user("the thing"), user("in the row"));
  const inner = g(input);
  const parts = (text: string, middle = text) =>
    seq(system(text), fragment("a"), user(middle), inner, fragment("b"), plus(fragment("c")), user("u"));
  const blended = lower(g(parts("s"), { reuse: "blend", recomputeRatio: 0.25 }));
  const exact = lower(g(parts("s")));

  test("copies cover fragments and outputs, token for token, and nothing else", () => {
    const runs = blended.plan.runs.filter((run) => run.blend !== undefined);
    expect(runs.length).toBe(1);
    const [run] = runs as [PlanRun];
    expect(run.blend?.recomputeRatio).toBe(0.25);
    const copies = run.blend?.copies ?? [];
    expect(copies.length).toBe(3);
    let end = 0;
    for (const { run: index, firstToken, tokenCount, at } of copies) {
      const source = blended.plan.runs[index] as PlanRun;
      expect(index).toBeLessThan(blended.plan.runs.indexOf(run));
      expect(firstToken).toBe(0);
      expect(tokenCount).toBe(source.tokenIds.length);
      expect(at).toBeGreaterThanOrEqual(end);
      expect([...run.tokenIds.subarray(at, at + tokenCount)]).toEqual([...source.tokenIds]);
      end = at + tokenCount;
    }
    const spans = ["a", "b"].map((id) => rig.spans.lowerSpan({ ...idOf(id), salt: corpusSalt }).blockKeys);
    const keys = copies.map(({ run: index }) => blended.plan.runs[index]?.blockKeys.join());
    expect([keys[0], keys[2]]).toEqual(spans.map((span) => span.join()));
    const withoutCopies = run.tokenIds.length - copies.reduce((sum, { tokenCount }) => sum + tokenCount, 0);
    expect(withoutCopies).toBe(rig.tokenizer.encode(templated("system", "s"), true).length + userTokens("s"));
  });

  const templated = (role: string, text: string) =>
    [
      { kind: "template", text: `<|im_start|>${role}\n` },
      { kind: "content", text },
      { kind: "template", text: "<|im_end|>\n" },
    ] as const;
  const userTokens = (text: string) => rig.tokenizer.encode(templated("user", text), false).length;

  test("the tokens are those of the exact prompt, and no key is shared with it but the copied chains'", () => {
    const text = ({ plan }: LoweredGenerate) =>
      plan.runs.filter((run) => run.kind === "main").flatMap((run) => [...run.tokenIds]);
    expect(text(blended)).toEqual(text(exact));
    expect(blended.promptTokens).toBe(exact.promptTokens);
    const mainKeys = (lowered: LoweredGenerate) =>
      lowered.plan.runs.filter((run) => run.kind === "main").flatMap((run) => [...run.blockKeys, run.rootKey]);
    const keys = new Set(mainKeys(exact));
    expect(mainKeys(blended).filter((key) => keys.has(key))).toEqual([]);
  });

  test("the first block's key depends on the ratio, on every copy's source and on the text up to the last copy", () => {
    const rootOf = (query: Generate, said?: () => string) =>
      lower(query, said).plan.runs.find((run) => run.blend !== undefined)?.rootKey;
    const options = { reuse: "blend", recomputeRatio: 0.25 } as const;
    const base = rootOf(g(parts("s"), options));
    expect(rootOf(g(parts("s"), options))).toBe(base as BlockKey);
    expect(rootOf(g(parts("s"), { reuse: "blend" }))).not.toBe(base);
    expect(rootOf(g(parts("s", "another"), options))).not.toBe(base);
    expect(rootOf(g(parts("s", "t"), options))).not.toBe(base);
    expect(rootOf(g(parts("s"), options), () => "other")).not.toBe(base);
    // The same words from another prompt are another computation.
    const otherPrompt = seq(
      system("s"),
      fragment("a"),
      user("s"),
      g(user("x")),
      fragment("b"),
      plus(fragment("c")),
      user("u"),
    );
    expect(rootOf(g(otherPrompt, options))).not.toBe(base);
  });

  test("with nothing to copy the prompt is exact", () => {
    const query = seq(system("s"), plus(fragment("a"), g(input, { expose: "output" })), user("u"));
    expect(lower(g(query, { reuse: "blend" })).plan).toEqual(lower(g(query)).plan);
  });
});

describe("outputs that are not there yet", () => {
  const input = seq(user("the thing"), plus(fragment("c")));
  const inner = g(input, { expose: "output" });
  const query = g(
    seq(
      system("s"),
      plus(fragment("a"), seq(input, inner), seq(user("x"), inner)),
      fragment("b"),
      assistant("y"),
      user("u"),
    ),
  );
  const unknown = lower(query, () => undefined);

  test("their runs depend on them, and all that comes after in the same chain", () => {
    const names = unknown.plan.runs.map((run, index) => [run.spanId ?? "main", unknown.indeterminateRuns.has(index)]);
    expect(names).toEqual([
      ["main", false],
      ["a", false],
      ["$.g.input.seq[1].plus[1].seq[1]", false],
      ["c", false],
      ["$.g.input.seq[1].plus[1].seq[1]", true],
      ["$.g.input.seq[1].plus[2]", true],
      ["main", true],
      ["main", true],
    ]);
  });

  test("what sees one depends on it: a preamble's spans, an answer to a prompt with one", () => {
    const preamble = lower(g(seq(system("s"), behind(inner, fragment("a")))), () => undefined);
    expect(preamble.plan.runs.map((_, index) => preamble.indeterminateRuns.has(index))).toEqual([
      false,
      true,
      true,
      true,
    ]);
    const deep = g(seq(inner, user("x")), { expose: "output" });
    const answers = lower(g(seq(system("s"), plus(deep))), (node) => (node === inner ? undefined : "an answer"));
    expect([...answers.indeterminateRuns]).toEqual(answers.plan.runs.map((_, index) => index).slice(1));
  });

  test("what does not depend on them can be prepared as it will be", () => {
    const known = lower(query);
    const prepared = rig.lowerer.preparable(unknown)?.runs ?? [];
    expect(prepared.length).toBe(4);
    const keys = new Set(known.plan.runs.flatMap((run) => [...run.blockKeys]));
    for (const run of prepared) {
      for (const key of run.blockKeys) expect(keys.has(key)).toBe(true);
      for (const segment of run.sees) expect(prepared[segment.run]?.tokenIds.length).toBeGreaterThanOrEqual(1);
    }
    expect(rig.lowerer.preparable(known)?.runs).toEqual(known.plan.runs.slice(0, -1));
  });

  test("references are moved to where the runs stand then", () => {
    const early = g(seq(plus(inner, seq(user("x"), plus(fragment("a")), user("z"))), fragment("b"), user("u")));
    const prepared = rig.lowerer.preparable(lower(early, () => undefined))?.runs ?? [];
    const [, , , , last] = prepared;
    expect(last?.sees.map(({ run }) => prepared[run]?.tokenIds.length)).toEqual(
      last?.sees.map(({ tokenCount }) => tokenCount),
    );
  });
});
