/** The shipped demo model's files: sizes, shapes, special tokens, and token ids as the Python tokenizers made them. */
import { expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";

const folder = join(import.meta.dir, "../../../worker/model/demo");
const json = (name: string) => Bun.file(join(folder, name)).json();
const tokenizer = new Tokenizer(await json("tokenizer.json"), await json("tokenizer_config.json"));

async function header(name: string): Promise<Record<string, { dtype: string; shape: number[] }>> {
  const file = Bun.file(join(folder, name));
  const length = Number(new DataView(await file.slice(0, 8).arrayBuffer()).getBigUint64(0, true));
  const { __metadata__: _, ...tensors } = JSON.parse(await file.slice(8, 8 + length).text());
  return tensors;
}

test("two bf16 shards of less than 20 MB that hold what the index says", async () => {
  const index = (await json("model.safetensors.index.json")) as { weight_map: Record<string, string> };
  const shards = [...new Set(Object.values(index.weight_map))].sort();
  expect(shards).toEqual(["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
  expect(shards.reduce((sum, name) => sum + Bun.file(join(folder, name)).size, 0)).toBeLessThan(20_000_000);
  let parameters = 0;
  for (const shard of shards) {
    const tensors = await header(shard);
    const expected = Object.keys(index.weight_map).filter((name) => index.weight_map[name] === shard);
    expect(Object.keys(tensors).sort()).toEqual(expected.sort());
    for (const { dtype, shape } of Object.values(tensors)) {
      expect(dtype).toBe("BF16");
      parameters += shape.reduce((product, size) => product * size, 1);
    }
  }
  expect(parameters).toBe(9_444_736);
});

test("token ids agree with the Python tokenizers and every text round-trips", async () => {
  const pairs = (await Bun.file(join(import.meta.dir, "token-ids.json")).json()) as { text: string; ids: number[] }[];
  for (const { text, ids } of pairs) {
    expect(tokenizer.encode(text, { add_special_tokens: false }).ids).toEqual(ids);
    if (ids.length > 0) {
      expect(tokenizer.decode(ids, { skip_special_tokens: false, clean_up_tokenization_spaces: false })).toBe(text);
    }
  }
});

test("special tokens, vocabulary and configuration fit together", async () => {
  const config = await json("config.json");
  expect(tokenizer.encode("<|endoftext|><|im_start|><|im_end|>", { add_special_tokens: false }).ids).toEqual([0, 1, 2]);
  expect(Object.keys((await json("tokenizer.json")).model.vocab).length).toBe(config.vocab_size);
  expect(config.eos_token_id).toEqual([2, 0]);
});

test("evaluation sets stay small and every question has an answer", async () => {
  const names = readdirSync(join(folder, "eval")).filter((name) => name.endsWith(".json.gz"));
  expect(names.length).toBeGreaterThan(15);
  let bytes = 0;
  for (const name of names) {
    const packed = await Bun.file(join(folder, "eval", name)).bytes();
    bytes += packed.length;
    for (const sample of JSON.parse(new TextDecoder().decode(Bun.gunzipSync(packed))).samples) {
      expect(sample.turns.length).toBeGreaterThan(0);
      for (const { question, answer } of sample.turns) expect(question.length * answer.length).toBeGreaterThan(0);
    }
  }
  expect(bytes).toBeLessThan(700_000);
});
