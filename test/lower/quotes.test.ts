/** Runs that have a corpus's text as their own name the span that it is by itself, so that they go with it. */
import { expect, test } from "bun:test";
import type { Generate, Query } from "../../gateway/query/ir.ts";
import type { PlanRun } from "../../worker/contract/messages.ts";
import { models } from "../text/models.ts";
import { behind, contextOf, corpusSalt, fragment, g, lowererOf, plus, salt, seq, system, user } from "./query-rig.ts";

const rig = lowererOf(models.chatml);
const context = contextOf(rig.tokenizer);
const keyOf = (id: string): string => {
  const found = context.fragments.get(id);
  if (found === undefined) throw new Error(`no fragment ${id}`);
  return rig.spans.lowerSpan({ ...found, salt: corpusSalt }).blockKeys.at(-1) ?? "";
};
/** What the corpus's spans begin with: it stands for all of them. */
const root = rig.spans.spanRoot(corpusSalt);
const runsOf = (query: Generate): readonly PlanRun[] => rig.lowerer.lower(query, context).plan.runs;
const quotesOf = (run: PlanRun): readonly string[] => run.quotes ?? [];

test("fragments in an ordered join are quoted by the run that they stand in, and by no other", () => {
  const query = g(seq(system("s"), fragment("a"), fragment("b"), fragment("a"), plus(fragment("c")), user("q")));
  expect(runsOf(query).map(quotesOf)).toEqual([[keyOf("a"), root, keyOf("b")], [], [], []]);
});

test("fragments behind a preamble have keys of their own there, and are quoted", () => {
  const runs = runsOf(g(seq(behind(user("preamble"), fragment("a"), fragment("b")), user("q"))));
  const quoting = runs.filter((run) => quotesOf(run).length > 0);
  expect(quoting.map(quotesOf)).toEqual([
    [keyOf("a"), root],
    [keyOf("b"), root],
  ]);
  for (const run of quoting) expect(quotesOf(run)).not.toContain(run.blockKeys.at(-1) ?? "");
});

test("what is in spans or copied is not quoted; nor is the caller's own text", () => {
  const own: Query = { kind: "fragment", text: "mine" };
  for (const query of [
    g(seq(system("s"), plus(fragment("a")), user("q"))),
    g(seq(system("s"), own, user("q"))),
    g(seq(system("s"), fragment("a"), user("q")), { reuse: "blend" }),
  ]) {
    expect(runsOf(query).flatMap(quotesOf)).toEqual([]);
  }
});

test("a plan for preparing keeps them", () => {
  const lowered = rig.lowerer.lower(g(seq(fragment("a"), user("q"))), context);
  expect(rig.lowerer.preparable(lowered)?.runs.map(quotesOf)).toEqual([[keyOf("a"), root]]);
});

test("a chat whose documents are part of the main chain quotes the corpus's, once each", () => {
  const documents = [
    { id: "own", text: "mine", salt },
    { id: "a", text: "theirs", salt: corpusSalt },
    { id: "again", text: "theirs", salt: corpusSalt },
  ];
  const input = { messages: [{ role: "user", content: "q" }], documents, salt };
  const theirs = rig.spans.lowerSpan({ id: "a", text: "theirs", salt: corpusSalt }).blockKeys.at(-1) ?? "";
  expect(rig.spans.lower({ ...input, attention: "full" }).runs.map(quotesOf)).toEqual([[theirs, root]]);
  expect(rig.spans.lower({ ...input, attention: "span" }).runs.flatMap(quotesOf)).toEqual([]);
});
