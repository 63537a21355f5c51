/** What a sync does, by what the folders and the store hold. */
import { expect, test } from "bun:test";
import { type LocalFile, labelOf, planSync, type StoredFile, type SyncPlan } from "../../gateway/sources/sync-plan.ts";
import { fc } from "../support/fast-check.ts";

const local = (name: string, sha256: string | undefined, label = "docs"): LocalFile => ({
  ...{ label, name, path: `${label}/${name}`, sha256 },
});

const stored = (
  name: string,
  sha256: string,
  label: string | undefined = "docs",
  status: StoredFile["status"] = "completed",
): StoredFile => ({
  ...{ id: `${name}@${sha256}`, status, attributes: label === undefined ? {} : { synced_from: label } },
  spangate: { filename: name, sha256 },
});

const ids = (files: readonly StoredFile[]) => files.map(({ id }) => id);
const shown = ({ work, unchanged, relabelled, gone, others }: SyncPlan) => ({
  work: work.map(({ file, present, older }) => [file.name, present?.id, ids(older)]),
  unchanged: unchanged.map(({ name }) => name),
  relabelled: relabelled.map((one) => [one.stored.id, one.attributes.synced_from]),
  gone: ids(gone),
  others: ids(others),
});
const planned = (files: readonly LocalFile[], store: readonly StoredFile[], mirror = false) =>
  shown(planSync(files, store, new Set(["docs"]), mirror));
const nothing = { work: [], unchanged: [], relabelled: [], gone: [], others: [] };

test("new, changed, unchanged and removed files", () => {
  const store = [stored("b", "1"), stored("c", "1"), stored("d", "1")];
  expect(planned([local("a", "1"), local("b", "2"), local("c", "1")], store)).toEqual({
    ...nothing,
    work: [
      ["a", undefined, []],
      ["b", undefined, ["b@1"]],
    ],
    unchanged: ["c"],
    gone: ["d@1"],
  });
});

test("a run that was cut off after it attached a file's newest version takes the older ones out", () => {
  const store = [stored("a", "1"), stored("a", "2")];
  expect(planned([local("a", "2")], store)).toEqual({ ...nothing, work: [["a", "a@2", ["a@1"]]] });
});

test("what is not ingested yet, or failed, is work; the last good version stays until then", () => {
  for (const status of ["in_progress", "failed", "cancelled"] as const) {
    const store = [stored("a", "1"), stored("a", "2", "docs", status)];
    expect(planned([local("a", "2")], store).work).toEqual([["a", "a@2", ["a@1"]]]);
  }
});

test("what cannot be read stays as the store has it", () => {
  expect(planned([local("a", undefined)], [stored("a", "1")])).toEqual(nothing);
});

test("files that came in another way: an older version is replaced, the same one gets the label, others stay", () => {
  const store = [stored("a", "1", ""), stored("b", "1", ""), stored("c", "1", ""), stored("a", "9", "notes")];
  const files = store.map((file) => (labelOf(file) === "" ? { ...file, attributes: {} } : file));
  const both = [local("a", "2"), local("b", "1")];
  const plan = { ...nothing, work: [["a", undefined, ["a@1"]]], unchanged: ["b"], relabelled: [["b@1", "docs"]] };
  expect(planned(both, files)).toEqual({ ...plan, others: ["c@1", "a@9"] } as never);
  expect(planned(both, files, true)).toEqual({ ...plan, gone: ["c@1", "a@9"] } as never);
});

test("one file of two folders: it stays while one of them has it, under that one's label", () => {
  const labels = new Set(["docs", "notes"]);
  const plan = (files: LocalFile[]) => shown(planSync(files, [stored("LICENSE", "1", "docs")], labels, false));
  const both = plan([local("LICENSE", "1", "docs"), local("LICENSE", "1", "notes")]);
  expect(both).toEqual({ ...nothing, unchanged: ["LICENSE", "LICENSE"] });
  const one = plan([local("LICENSE", "1", "notes")]);
  expect(one).toEqual({ ...nothing, unchanged: ["LICENSE"], relabelled: [["LICENSE@1", "notes"]] });
});

test("what is told anew of the same bytes is noted, and another folder's file is let alone", () => {
  const file = stored("a", "1");
  const old = { ...file, attributes: { ...file.attributes, own: 7, etag: "old" } };
  const told = { ...local("a", "1"), attributes: { etag: "new" } };
  const { relabelled, unchanged } = planSync([told], [old], new Set(["docs"]), false);
  expect(relabelled).toEqual([{ stored: old, attributes: { synced_from: "docs", own: 7, etag: "new" } }]);
  expect(unchanged).toEqual([told]);
  const others = { ...old, attributes: { ...old.attributes, synced_from: "notes" } };
  expect(planSync([told], [others], new Set(["docs"]), false).relabelled).toEqual([]);
});

test("done in any part and planned again, the store ends as the folders are, and never lacks a version meanwhile", () => {
  const anyFile = fc.record({ name: fc.constantFrom("a", "b", "c"), sha256: fc.constantFrom("1", "2", "3") });
  const anyFolder = fc.uniqueArray(anyFile, { selector: ({ name }) => name });
  const anyStore = fc.uniqueArray(anyFile, { selector: ({ name, sha256 }) => name + sha256 });
  fc.assert(
    fc.property(anyFolder, anyStore, fc.nat({ max: 6 }), (folder, store, cutAfter) => {
      const files = folder.map(({ name, sha256 }) => local(name, sha256));
      let now = store.map(({ name, sha256 }) => stored(name, sha256));
      const had = new Set(now.map(({ spangate }) => spangate?.filename));
      const run = (most: number) => {
        const plan = planSync(files, now, new Set(["docs"]), false);
        const steps = plan.work.flatMap(({ file, present, older }) => [
          () => (present === undefined ? [...now, stored(file.name, file.sha256 ?? "")] : now),
          ...older.map((old) => () => now.filter((one) => one.id !== old.id)),
        ]);
        steps.push(...plan.gone.map((old) => () => now.filter((one) => one.id !== old.id)));
        for (const step of steps.slice(0, most)) {
          now = step();
          const names = new Set(now.map(({ spangate }) => spangate?.filename));
          for (const { name } of files) expect(!had.has(name) || names.has(name)).toBe(true);
        }
      };
      run(cutAfter);
      run(Number.POSITIVE_INFINITY);
      expect(ids(now).sort()).toEqual(folder.map(({ name, sha256 }) => `${name}@${sha256}`).sort());
    }),
  );
});
