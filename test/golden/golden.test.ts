/** Every golden folder through engine, backend and kernels: logits, greedy tokens, spans in both orders. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { families } from "../../worker/model/family.ts";
import { openOnCpu } from "./cpu-model.ts";
import { type GoldenModel, goldenSchema } from "./golden-model.ts";

const folders = readdirSync(import.meta.dir, { withFileTypes: true }).filter((entry) => entry.isDirectory());

describe.each(folders.map((entry) => entry.name))("%s", (name) => {
  const folder = join(import.meta.dir, name);
  const { cases } = goldenSchema.parse(JSON.parse(readFileSync(join(folder, "golden.json"), "utf8")));
  let model: GoldenModel;
  beforeAll(async () => {
    model = await openOnCpu(folder, "float32");
  });
  afterAll(() => model.dispose());

  test.each(cases.map((goldenCase, index) => [`${goldenCase.kind} ${index}`, goldenCase] as const))(
    "%s",
    async (_, goldenCase) => {
      const result = await model.run(goldenCase);
      expect(result.maxRelativeExcess).toBeLessThanOrEqual(1);
      expect(result.greedyMatches).toBe(result.greedyLength);
      expect(result.withinBfloat16 ?? true).toBe(true);
    },
  );

  test("a fragment computed once serves the other order", async () => {
    const spans = cases.filter((goldenCase) => goldenCase.kind === "span");
    const [first, second] = spans;
    expect(second.fragments).not.toEqual(first.fragments);
    const result = await model.run(second);
    const reusable = second.system.length + second.fragments.flat().length;
    expect(result.cachedTokens).toBeGreaterThanOrEqual(reusable);
    expect(result.ok).toBe(true);
  });

  test("a wrong reference is noticed", async () => {
    const spoiled = {
      ...cases[1],
      last_logits: cases[1].last_logits.map((logit, i) => (i === 7 ? logit + 0.01 : logit)),
    };
    expect((await model.run(spoiled)).ok).toBe(false);
    const far = { ...cases[1], last_logits: cases[1].last_logits.map((logit) => logit + 1) };
    expect((await model.run(far)).withinBfloat16 ?? false).toBe(false);
    const other = { ...cases[1], greedy: cases[1].greedy.map((token) => token + 1), margins: [9, 0] };
    expect((await model.run(other)).withinBfloat16 ?? false).toBe(false);
  });
});

test("every family has a folder", () => {
  const shown = folders.flatMap((entry) => {
    const text = readFileSync(join(import.meta.dir, entry.name, "config.json"), "utf8");
    return (JSON.parse(text) as { readonly architectures: readonly string[] }).architectures;
  });
  expect(Object.keys(families).filter((architecture) => !shown.includes(architecture))).toEqual([]);
});
