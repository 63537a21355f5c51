import { expect, test } from "bun:test";
import { rowCostTokens } from "../../worker/model/row-cost.ts";

test("context whose attention costs as much as the products of a layer, counted one multiplication at a time", () => {
  const shape = { hiddenSize: 12, headCount: 4, kvHeadCount: 2, headDim: 5, ffnSize: 30 };
  const query = 12 * 20;
  const [key, value, output] = [12 * 10, 12 * 10, 20 * 12];
  const mlp = 3 * 12 * 30;
  const ofOneToken = 4 * (5 + 5);
  expect(rowCostTokens(shape)).toBe((query + key + value + output + mlp) / ofOneToken);
  const experts = { perToken: 2, ffnSize: 7 };
  const products = query + key + value + output + 2 * 3 * 12 * 7;
  expect(rowCostTokens({ ...shape, experts })).toBe(products / ofOneToken);
});
