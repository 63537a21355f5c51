import { expect, test } from "bun:test";
import { Lowerer } from "../../gateway/lower/plan.ts";
import { CorpusOwners } from "../../gateway/tenant/corpus-owners.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { fakeCard } from "../dispatch/fake-core.ts";
import { models, textSide } from "../text/models.ts";

const lowerer = new Lowerer({ ...textSide(models.chatml), card: fakeCard, cacheBytes: 10_000 });
const rootOf = (salt: string, text = "the thing") =>
  lowerer.lowerSpan({ id: "f", text, salt: salt as CacheSalt }).rootKey;

test("a lowered fragment's chain is its corpus's owner's, also when noted before the model was known", () => {
  const card: { digest: string | undefined } = { digest: undefined };
  const owners = new CorpusOwners(() => card.digest, 10);
  owners.note("c2FsdC0x" as CacheSalt, "tenant_a");
  expect(owners.ownerOf(rootOf("c2FsdC0x"))).toBeUndefined();
  card.digest = fakeCard.digest;
  owners.note("c2FsdC0y" as CacheSalt, "tenant_b");
  expect(owners.ownerOf(rootOf("c2FsdC0x"))).toBe("tenant_a");
  expect(owners.ownerOf(rootOf("c2FsdC0x", "another text"))).toBe("tenant_a");
  expect(owners.ownerOf(rootOf("c2FsdC0y"))).toBe("tenant_b");
  expect(owners.ownerOf(rootOf("c2FsdC0z"))).toBeUndefined();
});

test("the corpora longest unused are forgotten, and known again with their next use", () => {
  const owners = new CorpusOwners(() => fakeCard.digest, 2);
  for (const salt of ["MQ==", "Mg==", "Mw=="]) {
    owners.note(salt as CacheSalt, `tenant_${salt}`);
    expect(owners.ownerOf(rootOf(salt))).toBe(`tenant_${salt}`);
  }
  expect(owners.ownerOf(rootOf("MQ=="))).toBeUndefined();
  owners.note("MQ==" as CacheSalt, "tenant_MQ==");
  expect(owners.ownerOf(rootOf("MQ=="))).toBe("tenant_MQ==");
});
