/** IBM/spnl's own serde assertions and example queries, read as they are. */
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { z } from "zod";
import { parseQuery, parseQueryText } from "../../gateway/query/parse.ts";
import { canonicalText, printQuery } from "../../gateway/query/print.ts";

const fixtures = join(import.meta.dir, "fixtures");
const read = async (path: string): Promise<string> => await Bun.file(join(fixtures, path)).text();

const serdeSchema = z.object({
  cases: z.array(z.object({ name: z.string(), json: z.unknown(), normalized: z.unknown().optional() })).min(7),
});
const serde = serdeSchema.parse(JSON.parse(await read("upstream/serde.json")));

test.each(serde.cases.map((entry) => [entry.name, entry] as const))("%s", (_, { json, normalized }) => {
  const query = parseQuery(json);
  expect(printQuery(query)).toEqual((normalized ?? json) as never);
  expect(parseQuery(printQuery(query))).toStrictEqual(query);
});

test("the tokenizer's example query", async () => {
  expect(parseQueryText(await read("queries/tok_query.json"), "json")).toMatchObject({
    kind: "generate",
    options: { model: "ibm-granite/granite-3.3-2b-instruct" },
    input: { kind: "message", role: "user", text: "hello" },
  });
});

test("examples of the documentation", async () => {
  const { examples } = z
    .object({ examples: z.tuple([z.unknown(), z.unknown(), z.unknown()]) })
    .parse(JSON.parse(await read("queries/docs-about-examples.json")));
  const [hello, asking, judge] = examples;
  expect(parseQuery(hello)).toMatchObject({ input: { kind: "seq", children: [{ text: "Hello world" }] } });
  expect(() => parseQuery(asking)).toThrow("$.g.input.cross[0].ask: acts in the client and is not supported");
  expect(parseQuery(judge)).toMatchObject({
    input: {
      children: [
        {},
        { kind: "plus", children: [{ kind: "repeat", n: 4, generate: { options: { maxTokens: 1000 } } }] },
        {},
      ],
    },
  });
});

/** Nodes that print are for the client: it takes them out, line by line, before it sends the rest. */
const withoutPrints = (text: string, format: string): string =>
  format === "yaml"
    ? text.replaceAll(/^ *- print: .*\n/gm, "")
    : text.replaceAll(/\{\s*"print": "[^"]*"\s*\},\s*/g, "");

const filledIn = (text: string): string =>
  text
    .replaceAll('"{n}"', "4")
    .replaceAll('"{max_tokens}"', "100")
    .replaceAll('"{temperature}"', "0.3")
    .replaceAll("{model}", "ollama/granite3.2:2b");

describe.each(["email", "email2", "email3"])("the built-in template %s", (name) => {
  test.each(["json", "yaml"] as const)("as %s: refused by path until it is filled in", async (format) => {
    const text = await read(`queries/${name}.${format}`);
    expect(() => parseQueryText(filledIn(text), format)).toThrow("$.g.input.seq[1].print: acts in the client");
    const template = withoutPrints(text, format);
    expect(() => parseQueryText(template, format)).toThrow(
      '$.g.input.seq[1].plus[0].repeat.n: must be a whole number from 1 to 256, not the string "{n}".',
    );
    const printed = canonicalText(parseQueryText(filledIn(template), format));
    expect(printed).toStartWith(
      '{"g":{"model":"ollama/granite3.2:2b","max_tokens":0,"temperature":0.6,"input":{"seq":[',
    );
    expect(printed).toContain(
      '{"repeat":{"n":4,"g":{"model":"ollama/granite3.2:2b","max_tokens":100,"temperature":0.3,"input":{',
    );
  });
});

test.each(["email", "email2"])("%s says the same in JSON and in YAML", async (name) => {
  const [json, yaml] = await Promise.all(
    (["json", "yaml"] as const).map(async (format) => {
      const text = await read(`queries/${name}.${format}`);
      return canonicalText(parseQueryText(filledIn(withoutPrints(text, format)), format));
    }),
  );
  expect(json).toBe(yaml ?? "");
});
