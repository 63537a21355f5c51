/** No chain begins without a salt: the compiler refuses it, and salts are made in one place. */
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { ChainBuilder } from "../../gateway/lower/chains.ts";
import { Salts } from "../../gateway/tenant/salts.ts";
import { ServerSecret } from "../../gateway/tenant/secret.ts";
import { rootKey } from "../../worker/contract/block-key.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";

const repository = join(import.meta.dir, "..", "..");

/** `true` where the compiler would take the value for the parameter; the wrong literal below does not compile. */
type Takes<Parameter, Value> = [Value] extends [Parameter] ? true : false;
type RootSalt = Parameters<typeof rootKey>[1];
type ChainSalt = ConstructorParameters<typeof ChainBuilder>[1]["salt"];

test("a chain's root takes a salt: not a string, not another chain's key, and not nothing", () => {
  const salt: CacheSalt = new Salts(new ServerSecret(Buffer.alloc(32, 7))).ofTenant("tenant_a", 0);
  expect(rootKey("digest", salt, "span")).toMatch(/^[0-9a-f]{32}$/);
  const taken: readonly [Takes<RootSalt, CacheSalt>, Takes<ChainSalt, CacheSalt>] = [true, true];
  const refused: readonly [
    Takes<RootSalt, string>,
    Takes<RootSalt, BlockKey>,
    Takes<RootSalt, undefined>,
    Takes<ChainSalt, string>,
    Takes<ChainSalt, undefined>,
  ] = [false, false, false, false, false];
  expect([...taken, ...refused].filter((isTaken) => isTaken)).toHaveLength(2);
});

test("salts are made by gateway/tenant/salts.ts alone", () => {
  const makers = ["gateway", "worker", "db"].flatMap((area) =>
    [...new Bun.Glob("**/*.ts").scanSync({ cwd: join(repository, area) })]
      .map((file) => join(area, file))
      .filter((file) => /\bas (unknown as )?CacheSalt\b/.test(readFileSync(join(repository, file), "utf8"))),
  );
  expect(makers).toEqual([join("gateway", "tenant", "salts.ts")]);
});
