/** Pins are walked by themselves: a tenant that pins one fragment must not cost a look at everybody's fragments. */
import { expect, spyOn, test } from "bun:test";
import { completeFile } from "../../db/corpus-files.ts";
import { type Db, openDb } from "../../db/open.ts";
import { putPin, walkPins } from "../../db/pins.ts";
import { tenantWithFile } from "./tenant-with-file.ts";

function tenantWithFragments(db: Db, count: number) {
  const texts = Array.from({ length: count }, (_, ordinal) => `Page ${ordinal}.`);
  const { tenantId, attached, rows } = tenantWithFile(db, texts);
  completeFile(db, attached, 1);
  return { tenantId, fragmentIds: rows.map(({ id }) => id) };
}

test("walking the pins reads the pinned fragments, in order, and looks at no other", () => {
  const db = openDb(":memory:");
  const { tenantId, fragmentIds } = tenantWithFragments(db, 40);
  for (const seq of [30, 3, 17]) putPin(db, { fragmentSeq: seq, tenantId, blocks: 1, tier: "device" });
  const prepared = spyOn(db.client, "prepare");
  const walked = walkPins(db, 0, 2);
  expect(walked.map(({ seq, id }) => [seq, id])).toEqual([3, 17].map((seq) => [seq, fragmentIds[seq - 1]]));
  expect(walkPins(db, 17, 2).map(({ seq }) => seq)).toEqual([30]);
  expect(walkPins(db, 30, 2)).toEqual([]);
  const [sql = ""] = prepared.mock.calls[0] ?? [];
  const plan = db.client
    .query<{ detail: string }, [string, number, number]>(`explain query plan ${sql}`)
    .all("completed", 0, 2);
  expect(plan[0]?.detail).toStartWith("SEARCH fragment_pins USING INTEGER PRIMARY KEY");
  expect(plan.map(({ detail }) => detail).join()).not.toContain("TEMP B-TREE");
  db.close();
});
