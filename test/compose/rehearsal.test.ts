/** The questions that a start asks itself: what they run, and in whose name. */
import { expect, test } from "bun:test";
import { openRehearsal } from "../../gateway/compose/rehearsal.ts";
import { Lowerer } from "../../gateway/lower/plan.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { chatRig } from "../http/chat-rig.ts";

const facts = {
  corpusId: "vs_1",
  fileId: "file-1",
  tenantId: "tenant_a",
  salt: "Y29ycHVz" as CacheSalt,
} as const;
const fragments = [
  { id: "frag_1", text: "The manager of Anna is Tom.", ...facts },
  { id: "frag_2", text: "Tom lives in Oslo.", ...facts },
] as const;

function rehearsalRig() {
  const rig = chatRig();
  const card = rig.registry.card();
  if (card === undefined) throw new Error("no worker is ready");
  const lowerer = new Lowerer({ ...rig.text, card, cacheBytes: 100_000 });
  const text = { lowererFor: () => lowerer, tokenBytes: rig.text.tokenBytes };
  return { rig, lowerer, ask: openRehearsal({ text, workers: rig, readAtMs: performance.now() }) };
}

test("a rehearsed question runs over the fragments' own spans, in nobody's name", async () => {
  const { rig, lowerer, ask } = rehearsalRig();
  await ask("0", fragments);
  await ask("1", fragments);
  const submits = rig.submits();
  expect(submits).toHaveLength(2);
  const spanKeys = fragments.map((fragment) => lowerer.lowerSpan(fragment).blockKeys.at(-1));
  for (const { plan, owners } of submits) {
    const spans = plan.runs.filter(({ kind }) => kind === "span");
    expect(spans.map(({ blockKeys }) => blockKeys.at(-1))).toEqual(spanKeys);
    const asker = owners?.owners[owners.ofRun.at(-1) ?? 0];
    expect(asker?.number).toBe(0);
  }
});

test("a text that was deleted after it was read is not brought back", async () => {
  const { rig, lowerer, ask } = rehearsalRig();
  const [{ salt }] = fragments;
  await Bun.sleep(1);
  rig.dispatcher.evictions.evict(lowerer.lowerSpan(fragments[0]).blockKeys, lowerer.spanRoot(salt));
  await ask("0", fragments);
  expect(rig.submits().map(({ reuse }) => reuse)).toEqual([false]);
});
