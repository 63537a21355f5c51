/** IBM/spnl's published assertions about the tree (commit 692dcfe), and what is answered where ours differs. */
import { describe, expect, test } from "bun:test";
import { augmentFragments } from "../../gateway/query/builder.ts";
import type { Query } from "../../gateway/query/ir.ts";
import { printQuery } from "../../gateway/query/print.ts";
import type { RewriteOptions } from "../../gateway/query/rules/rewrite.ts";
import type { Rule } from "../../gateway/query/rules/rule.ts";
import { standardRules } from "../../gateway/query/rules/table.ts";
import { mapChildren } from "../../gateway/query/transform.ts";
import { rewrite } from "../support/span-queries.ts";
import execute from "./fixtures/upstream/execute.json";
import hlo from "./fixtures/upstream/hlo.json";
import simplify from "./fixtures/upstream/simplify.json";
import semantics from "./fixtures/upstream/tokenizer-semantics.json";
import { type Json, out, treeOf, user } from "./nodes.ts";
import { differs, upstreamDifferences } from "./upstream-differences.ts";
import { Visibility } from "./visibility.ts";

interface Suite {
  readonly file: string;
  readonly cases: readonly { readonly name: string; readonly input: Json; readonly expected: Json }[];
  readonly options: (input: Json) => RewriteOptions;
  readonly rules: readonly Rule[];
}

const rulesNamed = (...names: string[]) => standardRules.filter(({ name }) => names.includes(name));
const simplifications = [
  "map-to-plus",
  "repeat-once",
  "only-child",
  "flatten-ordered",
  "flatten-plus",
  "drop-empty",
  "plus-to-map",
];

const suites: readonly Suite[] = [
  {
    file: "hlo.json",
    cases: hlo.cases,
    options: (input) => ({ spans: JSON.stringify(input).includes('"model":"spnl/') }),
    rules: standardRules,
  },
  {
    file: "simplify.json",
    cases: simplify.cases,
    options: (input) => ({ bulkMap: !JSON.stringify(input).includes('"model":"disable_bulk_map/') }),
    rules: rulesNamed(...simplifications),
  },
  {
    file: "execute.json",
    cases: execute.cases,
    options: () => ({}),
    rules: rulesNamed("zip-to-join", "idle-monad", "drop-empty"),
  },
];

/** A document that is short enough is one chunk. */
function resolved(query: Query): Query {
  if (query.kind !== "augment") return mapChildren(query, resolved);
  return { kind: "retrieved", fragments: augmentFragments(query, [query.doc.text]) };
}

const rewritten = ({ options, rules }: Suite, input: Json) =>
  rewrite(resolved(treeOf(input)), options(input), rules).query;

/** What ours gives where it differs. */
const instead: Readonly<Record<string, Json>> = {
  simplify_plus_of_seq: { plus: [{ seq: [user("a"), user("b")] }, user("c"), user("d")] },
  nested_gen_expect_span_optimization: outer([
    {
      seq: [
        { system: "inner system" },
        user("inner user"),
        out({ seq: [{ system: "inner system" }, user("inner user")] }, { model: "spnl/m" }),
      ],
    },
  ]),
};

function outer(children: readonly Json[]): Json {
  const input = { seq: [{ system: "outer system" }, { plus: children }] };
  return { g: { model: "spnl/m", max_tokens: 0, temperature: 0.6, input } };
}

for (const suite of suites) {
  describe(suite.file, () => {
    for (const { name, input, expected } of suite.cases) {
      if (differs(suite.file, name)) {
        test(`${name}: differs on purpose`, () => {
          const given = printQuery(rewritten(suite, input));
          expect(given).not.toEqual(printQuery(treeOf(expected)));
          expect(given).toEqual(printQuery(treeOf(instead[name])));
        });
      } else {
        test(name, () => {
          expect(printQuery(rewritten(suite, input))).toEqual(printQuery(treeOf(expected)));
        });
      }
    }
  });
}

describe("tokenizer-semantics.json: the same relation without marker tokens", () => {
  for (const [form = "", tokens = ""] of semantics.rules) {
    test(form, () => {
      const { texts } = new Visibility().promptOf(treeOf(treeOfForm(form)));
      const given = texts.map(({ sees }) => [...sees]);
      expect(given).toEqual(relationOfMarkers(tokens));
    });
  }

  /** `(cross A (plus B C) D)` */
  function treeOfForm(form: string): Json {
    const json = form
      .replace(/\((\w+) /g, '{"$1":[')
      .replaceAll(")", "]}")
      .replace(/([A-Z])/g, '{"user":"$1"}')
      .replaceAll(" ", ",");
    return JSON.parse(json);
  }

  /** `+` begins a span, which sees nothing before it; after `x` a text sees all; else it sees its chain, which spans are no part of. */
  function relationOfMarkers(tokens: string): number[][] {
    const marked = [...tokens.matchAll(/([+x]?)([a-z])/g)].filter(([, , text]) => text !== "x");
    return marked.map(([, marker], index) => {
      if (marker === "+") return [];
      const before = marked
        .slice(0, index)
        .map(([, other], earlier) => (marker === "x" || other !== "+" ? earlier : -1));
      return before.filter((earlier) => earlier >= 0);
    });
  }
});

test("every difference names a case that is there", () => {
  const names = suites.flatMap(({ file, cases }) => cases.map(({ name }) => `${file} ${name}`));
  const listed = upstreamDifferences.filter(({ file }) => suites.some((suite) => suite.file === file));
  expect(listed.filter(({ file, case: name }) => !names.includes(`${file} ${name}`))).toEqual([]);
  expect(listed.map(({ case: name }) => name).sort()).toEqual(Object.keys(instead).sort());
});
