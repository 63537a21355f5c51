/** No chain begins without a salt: the compiler refuses it, and salts are made in one place. */
import { expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Salts } from "../../gateway/tenant/salts.ts";
import { ServerSecret } from "../../gateway/tenant/secret.ts";
import { rootKey } from "../../worker/contract/block-key.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";

const repository = join(import.meta.dir, "..", "..");

test("a chain's root takes a salt, not a string and not nothing", () => {
  const salt: CacheSalt = new Salts(new ServerSecret(randomBytes(32))).ofTenant("tenant_a", 0);
  expect(rootKey("digest", salt, "span")).toMatch(/^[0-9a-f]{32}$/);
  // Never run: the compiler reads it, and a directive without an error below it is an error.
  const refused = (): unknown => [
    // @ts-expect-error a tenant's id is no salt
    rootKey("digest", "tenant_a", "span"),
    // @ts-expect-error nothing is no salt
    rootKey("digest", undefined, "span"),
    // @ts-expect-error a salt is not left out
    rootKey("digest", "span"),
    // @ts-expect-error nor is a key of another chain a salt
    rootKey("digest", rootKey("digest", salt, "span"), "span"),
  ];
  expect(refused).toBeFunction();
});

test("salts are made by gateway/tenant/salts.ts alone", () => {
  const makers = ["gateway", "worker", "db"].flatMap((area) =>
    [...new Bun.Glob("**/*.ts").scanSync({ cwd: join(repository, area) })]
      .map((file) => join(area, file))
      .filter((file) => /\bas (unknown as )?CacheSalt\b/.test(readFileSync(join(repository, file), "utf8"))),
  );
  expect(makers).toEqual([join("gateway", "tenant", "salts.ts")]);
});
