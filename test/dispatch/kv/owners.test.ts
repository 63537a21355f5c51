import { describe, expect, test } from "bun:test";
import type { TenantId } from "../../../db/ids.ts";
import { KvOwners } from "../../../gateway/dispatch/kv/owners.ts";
import { corpusSalt, plan, readyRig, request, spanRun } from "../rig.ts";

describe("owners of a plan's runs", () => {
  test("a tenant has one number, named once in a plan; nobody's is 0", () => {
    const owners = new KvOwners();
    const { owners: named, ofRun } = owners.ofPlan(["tenant_a", "tenant_b", "tenant_a", ""], 64);
    expect(named).toEqual([{ number: 1 }, { number: 2 }, { number: 0 }]);
    expect([...ofRun]).toEqual([0, 1, 0, 2]);
    expect(owners.ofPlan(["tenant_b"], 64).owners).toEqual([{ number: 2 }]);
  });

  test("a quota is whole blocks of it, asked for each time", () => {
    const quotas = new Map([["tenant_a", 1_000]]);
    const owners = new KvOwners((tenantId) => quotas.get(tenantId));
    expect(owners.ofPlan(["tenant_a", "tenant_b"], 64).owners).toEqual([{ number: 1, quotaBlocks: 15 }, { number: 2 }]);
    quotas.clear();
    expect(owners.ofPlan(["tenant_a"], 64).owners).toEqual([{ number: 1 }]);
  });

  test("a tenant that was forgotten gets a number that nobody had", () => {
    const owners = new KvOwners(() => undefined, 2);
    for (const tenantId of ["tenant_a", "tenant_b", "tenant_c"] as const) owners.ofPlan([tenantId], 64);
    expect(owners.ofPlan(["tenant_a"], 64).owners).toEqual([{ number: 4 }]);
  });
});

test("a worker is told whose each run is: a corpus's fragments are its owner's, the rest is the asking tenant's", () => {
  const quotaOf = (tenantId: TenantId) => (tenantId === "tenant_corpus" ? 10_000_000 : undefined);
  const { dispatcher, process, registry } = readyRig(1, { kvQuotaBytesOf: quotaOf });
  const spans = [spanRun("own", 20), spanRun("fragment", 40, corpusSalt)];
  dispatcher.submit(request("a", { plan: plan([7, 8, 9], spans) }));
  const quotaBlocks = Math.floor(10_000_000 / (registry.card()?.kvBytesPerBlock ?? 0));
  expect(process.submits[0]).toMatchObject({
    owners: { owners: [{ number: 1 }, { number: 2, quotaBlocks }], ofRun: Uint16Array.of(0, 1, 0) },
  });
});
