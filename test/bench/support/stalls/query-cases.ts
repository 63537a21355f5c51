/** Span queries: trees as wide, as deep and as long as they may be, in JSON and YAML. */
import { jsonCase, type StallCase, target } from "./case.ts";
import { prose, times } from "./texts.ts";
import type { StallWorld } from "./world.ts";

type Tree = Readonly<Record<string, unknown>>;
const [execute, prepare, explain] = ["POST /v1/query/execute", "POST /v1/query/prepare", "POST /v1/query/explain"];

const generate = (model: string, input: Tree, maxTokens = 1): Tree => ({ g: { model, max_tokens: maxTokens, input } });
const said = (text: string): Tree => ({ user: text });

const thousand = ({ model }: StallWorld): Tree =>
  generate(model, { plus: times(1_000, (at) => generate(model, said(`Tell of ${at}.`))) });
const nodes = ({ model }: StallWorld): Tree =>
  generate(model, { seq: times(4, () => ({ plus: times(2_400, (at) => ({ fragment: { text: `Page ${at}.` } })) })) });
const nested = (model: string, depth: number): Tree =>
  depth === 0 ? said("a") : { seq: [said("b"), { plus: [said("c"), nested(model, depth - 1)] }] };
const repeated = ({ model }: StallWorld): Tree => ({
  repeat: { n: 256, g: { model, max_tokens: 1, input: said("Say.") } },
});
const texts = ({ model }: StallWorld): Tree =>
  generate(model, { plus: times(100, (at) => ({ fragment: { text: prose(80_000, at) } })) });
const retrieves = ({ model, storeIds }: StallWorld): Tree =>
  generate(model, {
    seq: times(64, (at) => ({
      retrieve: { vector_store_ids: storeIds, query: prose(1_000, at), max_num_results: 50 },
    })),
  });
const augmented = ({ model }: StallWorld): Tree =>
  generate(model, {
    augment: { embedding_model: "e", body: said("Who?"), doc: ["a.txt", { Text: prose(1_000_000) }] },
  });

const trees = {
  "1,000 generates": thousand,
  "10,000 nodes": nodes,
  "256 samples": repeated,
  "8 MiB of fragments": texts,
  "64 searches": retrieves,
  "a document of 1 MB": augmented,
};

const yaml = (count: number): string => times(count, (at) => `- {user: "a ${at} b"}`).join("\n");
const aliases = `- &a {plus: [${times(40, () => "{user: x}").join(", ")}]}\n${times(9_000, () => "- *a").join("\n")}`;

const yamlCase = (route: string, name: string, text: (world: StallWorld) => string): StallCase => ({
  route,
  name: `YAML: ${name}`,
  make: (world) => ({ ...target(world, route), body: text(world), contentType: "application/yaml" }),
});

const wide =
  (body: string) =>
  ({ model }: StallWorld) =>
    `g:\n  model: ${model}\n  max_tokens: 1\n  input:\n    seq:\n${body.replace(/^/gm, "      ")}\n`;

export const queryCases: readonly StallCase[] = [
  ...Object.entries(trees).flatMap(([name, tree]) =>
    [explain, prepare, execute].map((route) => jsonCase(route, name, tree, { afterMs: 500 })),
  ),
  jsonCase(explain, "60 levels", ({ model }) => generate(model, nested(model, 28))),
  yamlCase(explain, "7,000 nodes", wide(yaml(7_000))),
  yamlCase(explain, "aliases", wide(aliases)),
  yamlCase(explain, "8 MB", wide(yaml(500_000))),
  yamlCase(
    execute,
    "one text of 8 MB",
    ({ model }) => `g:\n  model: ${model}\n  input: {user: "${"a b ".repeat(2_000_000)}"}\n`,
  ),
  {
    route: "POST /v1/query/bulk",
    name: "10,000 lines",
    make: (world) => ({
      ...target(world, "POST /v1/query/bulk", "?concurrency=64"),
      body: times(10_000, (at) =>
        JSON.stringify({ id: `${at}`, query: generate(world.model, said(`Tell of ${at}.`)) }),
      ).join("\n"),
      contentType: "application/x-ndjson",
    }),
  },
  {
    route: "POST /v1/query/bulk",
    name: "16 MiB over shared fragments",
    make: (world) => ({
      ...target(world, "POST /v1/query/bulk"),
      body: times(2_000, (at) => {
        const input = { plus: times(4, (index) => ({ fragment: { text: prose(1_900, (at * 3 + index) % 500) } })) };
        return JSON.stringify({ id: `${at}`, query: generate(world.model, input) });
      }).join("\n"),
      contentType: "application/x-ndjson",
    }),
  },
  bulkRead("GET /v1/query/bulk/{bulk_id}", "what is known"),
  bulkRead("GET /v1/query/bulk/{bulk_id}/results/{result_id}", "one result"),
];

function bulkRead(route: string, name: string): StallCase {
  return {
    route,
    name,
    make: async (world) => {
      const { url } = world.server;
      const headers = { authorization: `Bearer ${world.hostile.apiKey}`, "content-type": "application/x-ndjson" };
      const line = JSON.stringify({ id: "a", query: generate(world.model, said("Hello.")) });
      const answer = await fetch(`${url}/v1/query/bulk`, { method: "POST", headers, body: line });
      const [, result = "{}"] = (await answer.text()).split("\n");
      world.ids.bulk_id = answer.headers.get("x-bulk-id") ?? "";
      world.ids.result_id = (JSON.parse(result) as { id?: string }).id ?? "";
      return target(world, route);
    },
  };
}
