import { expect, test } from "bun:test";
import { Lowerer } from "../../gateway/lower/plan.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { yieldsDuring } from "../support/yields.ts";
import { models, textSide } from "./models.ts";

const salt = "dGVuYW50" as CacheSalt;
const card = { digest: "ab".repeat(32), blockTokens: 4, contextTokens: 10_000 };
const input = (chars: number) => {
  const messages = [{ role: "user", content: "the thing in the row ".repeat(chars / 21) }];
  return { messages, documents: [], salt, attention: "span" as const };
};

test("a prompt that is too long is refused while it is encoded, as soon as that is known", async () => {
  const [lowerer, counting] = [0, 1].map(
    () => new Lowerer({ ...textSide(models.chatml), card, cacheBytes: 1_000_000 }),
  );
  if (lowerer === undefined || counting === undefined) throw new Error("there are two");
  const refused = expect.objectContaining({ code: "context_length_exceeded", param: "messages" });
  const warmed = await yieldsDuring(() => lowerer.warm(input(105_000)).catch((error: unknown) => error));
  expect(warmed.result).toEqual(refused);
  // Whoever counts tokens has them counted to the end.
  const counted = await yieldsDuring(() => counting.warm(input(105_000), false));
  expect(warmed.yields).toBeLessThan(counted.yields);
  expect(await lowerer.warm(input(4_200))).toBeUndefined();
  await expect(lowerer.lowerText(input(105_000).messages[0]?.content ?? "", salt)).rejects.toMatchObject({
    code: "context_length_exceeded",
    param: "prompt",
  });
});
