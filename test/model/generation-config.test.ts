/** `generation_config.json`: end tokens and how to sample where a request does not say. */
import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { readModel } from "../../worker/model/load.ts";
import { tinyConfig, writeModelFolder } from "./folder.ts";

const folder = writeModelFolder(tinyConfig);
function read(config: unknown) {
  writeFileSync(join(folder, "generation_config.json"), JSON.stringify(config));
  const { eosTokenIds, samplingDefaults } = readModel(folder);
  return { eosTokenIds, samplingDefaults };
}

test("says nothing where it is not there", () => {
  const { eosTokenIds, samplingDefaults } = readModel(writeModelFolder(tinyConfig));
  expect({ eosTokenIds, samplingDefaults }).toEqual({ eosTokenIds: [2], samplingDefaults: {} });
});

const cases: [string, unknown, ReturnType<typeof read>][] = [
  [
    "every field",
    {
      do_sample: true,
      temperature: 0.6,
      top_p: 0.95,
      top_k: 20,
      min_p: 0.05,
      repetition_penalty: 1.05,
      eos_token_id: [3, 4],
    },
    {
      eosTokenIds: [3, 4],
      samplingDefaults: { temperature: 0.6, topP: 0.95, topK: 20, minP: 0.05, repetitionPenalty: 1.05 },
    },
  ],
  [
    "greedy decoding",
    { do_sample: false, temperature: 0.7 },
    { eosTokenIds: [2], samplingDefaults: { temperature: 0 } },
  ],
  ["fields that are null or unknown", { top_k: null, max_length: 20 }, { eosTokenIds: [2], samplingDefaults: {} }],
  ["top_k as vLLM switches it off", { top_k: -1 }, { eosTokenIds: [2], samplingDefaults: { topK: 0 } }],
];
test.each(cases)("%s", (_, config, expected) => expect(read(config)).toEqual(expected));

test.each([
  ["temperature", -1],
  ["temperature", "hot"],
  ["top_p", 0],
  ["top_p", 1.5],
  ["top_k", 2.5],
  ["top_k", 1e12],
  ["min_p", 2],
  ["repetition_penalty", 0],
  ["do_sample", 1],
  ["eos_token_id", 128],
])("refuses %s %p by name", (field, value) => {
  expect(() => read({ [field]: value })).toThrow(new RegExp(`generation_config\\.json: "${field}"`));
});
