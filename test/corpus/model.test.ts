/**
 * Model-based: any sequence of uploads, attachments, deletions, prepare jobs, salt rotations and restarts leaves the
 * corpus side as a plain in-memory model says.
 */
import { expect, test } from "bun:test";
import type { CorpusId, FileId, TenantId } from "../../db/ids.ts";
import { effort } from "../support/effort.ts";
import { fc } from "../support/fast-check.ts";
import { createWorld, type World } from "./world.ts";

interface ModelFile {
  readonly tenant: number;
  readonly name: string;
  readonly text: string;
}

interface ModelStore {
  readonly tenant: number;
  readonly attached: Set<FileId>;
}

/** What should be true. */
class Model {
  readonly files = new Map<FileId, ModelFile>();
  readonly stores = new Map<CorpusId, ModelStore>();

  fileAt(index: number): FileId | undefined {
    return [...this.files.keys()][index % Math.max(1, this.files.size)];
  }

  storeAt(index: number): CorpusId | undefined {
    return [...this.stores.keys()][index % Math.max(1, this.stores.size)];
  }
}

interface Run {
  world: World;
  readonly tenants: readonly TenantId[];
}

/** @param index 0 or 1 */
function tenantOf({ tenants }: Run, index: number): TenantId {
  const id = tenants[index];
  if (id === undefined) throw new Error(`there is no tenant ${index}`);
  return id;
}

type Step = (model: Model, run: Run) => Promise<void> | void;

const words = ["amber", "birch", "cedar", "delta", "ember"];
const textOf = (n: number) =>
  Array.from({ length: 1 + (n % 9) }, (_, i) => `The ${words[(n + i) % 5]} ${n % 7} is here.`).join(" ");
const index = fc.nat(20);

const uploadFile = fc.tuple(fc.nat(1), fc.nat(12)).map(
  ([tenant, n]): Step =>
    async (model, run) => {
      const name = `${n % 3}.txt`;
      const bytes = new TextEncoder().encode(textOf(n));
      const tenantId = tenantOf(run, tenant);
      const { id } = await run.world.corpus.files.upload(tenantId, {
        filename: name,
        purpose: "assistants",
        mediaType: "",
        bytes,
      });
      const same = [...model.files].find(
        ([, file]) => file.tenant === tenant && file.name === name && file.text === textOf(n),
      );
      if (same !== undefined) expect(id).toBe(same[0]);
      else expect(model.files.has(id)).toBe(false);
      model.files.set(id, { tenant, name, text: textOf(n) });
    },
);

const createStore = fc.nat(1).map(
  (tenant): Step =>
    (model, run) => {
      const row = run.world.corpus.corpora.create(tenantOf(run, tenant), { name: "", metadata: {} });
      model.stores.set(row.id, { tenant, attached: new Set() });
    },
);

const attach = fc.tuple(index, index).map(
  ([f, s]): Step =>
    async (model, run) => {
      const fileId = model.fileAt(f);
      const storeId = model.storeAt(s);
      if (fileId === undefined || storeId === undefined) return;
      const file = model.files.get(fileId);
      const store = model.stores.get(storeId);
      const row = run.world.corpus.corpora.require(tenantOf(run, store?.tenant ?? 0), storeId, "own");
      const chunking = { maxTokens: 16, overlapTokens: 0 };
      const attaching = run.world.corpus.corpusFiles.attach(row, [{ fileId, attributes: {}, chunking }], "file_id");
      if (file?.tenant !== store?.tenant) return await expect(attaching).rejects.toThrow("No such file.");
      await attaching;
      store?.attached.add(fileId);
    },
);

const detach = fc.tuple(index, index).map(
  ([f, s]): Step =>
    (model, run) => {
      const storeId = model.storeAt(s);
      const store = storeId === undefined ? undefined : model.stores.get(storeId);
      const fileId = [...(store?.attached ?? [])][f % Math.max(1, store?.attached.size ?? 0)];
      if (storeId === undefined || store === undefined || fileId === undefined) return;
      const row = run.world.corpus.corpora.require(tenantOf(run, store.tenant), storeId, "own");
      run.world.corpus.corpusFiles.detach(row, fileId);
      store.attached.delete(fileId);
    },
);

const deleteFile = index.map(
  (f): Step =>
    (model, run) => {
      const fileId = model.fileAt(f);
      if (fileId === undefined) return;
      run.world.corpus.files.delete(tenantOf(run, model.files.get(fileId)?.tenant ?? 0), fileId);
      model.files.delete(fileId);
      for (const store of model.stores.values()) store.attached.delete(fileId);
    },
);

const onStore = (act: (run: Run, tenantId: TenantId, storeId: CorpusId, model: Model) => void) =>
  index.map(
    (s): Step =>
      (model, run) => {
        const storeId = model.storeAt(s);
        if (storeId === undefined) return;
        act(run, tenantOf(run, model.stores.get(storeId)?.tenant ?? 0), storeId, model);
      },
  );

const deleteStore = onStore((run, tenantId, storeId, model) => {
  run.world.corpus.corpora.delete(tenantId, storeId);
  model.stores.delete(storeId);
});
const prepare = onStore((run, tenantId, storeId) => void run.world.corpus.prepare.create(tenantId, storeId));
const rotate = onStore((run, tenantId, storeId) => void run.world.corpus.corpora.rotateSalt(tenantId, storeId));

const settle = fc.constant<Step>((_, run) => run.world.corpus.idle());
const restart = fc.constant<Step>(async (_, run) => {
  await run.world.close();
  run.world = createWorld(run.world.dir);
  await run.world.corpus.start();
});

/** After everything has settled the two agree, and nothing but what is visible holds memory. */
async function expectAgreement(model: Model, { world, tenants }: Run): Promise<void> {
  const all = { limit: 1_000, order: "asc" } as const;
  const visibleKeys = new Set<string>();
  for (const [tenant, tenantId] of tenants.entries()) {
    const files = [...model.files].filter(([, file]) => file.tenant === tenant).map(([id]) => id);
    expect(
      world.corpus.files
        .list(tenantId, all)
        .rows.map((row) => row.id)
        .sort(),
    ).toEqual(files.sort());
    const stores = [...model.stores].filter(([, store]) => store.tenant === tenant);
    expect(
      world.corpus.corpora
        .list(tenantId, all)
        .rows.map(({ row }) => row.id)
        .sort(),
    ).toEqual(stores.map(([id]) => id).sort());
    for (const [storeId, { attached }] of stores) {
      const row = world.corpus.corpora.require(tenantId, storeId, "own");
      expect(
        world.corpus.corpusFiles
          .list(row, all)
          .rows.map((file) => file.fileId)
          .sort(),
      ).toEqual([...attached].sort());
      for (const id of attached)
        expect(world.corpus.corpusFiles.texts(row, id).join("")).toBe(model.files.get(id)?.text ?? "");
      for (const word of words) {
        const found = await world.corpus.retrieve({ tenantId, vectorStoreIds: [storeId], query: word, maxResults: 50 });
        const expected = [...attached].filter((id) => model.files.get(id)?.text.includes(word));
        expect([...new Set(found.map((hit) => hit.fileId))].sort()).toEqual(expected.sort());
      }
      for (const { span } of (await world.corpus.fragments.list(tenantId, storeId, all)).rows)
        visibleKeys.add(span?.spanKey ?? "");
      const salt = world.corpus.corpora.saltOf(row);
      for (const id of attached) {
        for (const [i, text] of world.corpus.corpusFiles.texts(row, id).entries()) {
          for (const key of world.spans.lowerSpan({ id: String(i), text, salt }).blockKeys) visibleKeys.add(key);
        }
      }
    }
  }
  expect([...world.spans.resident].filter((key) => !visibleKeys.has(key))).toEqual([]);
  const { n } = world.db.client
    .query<{ n: number }, []>("select count(*) n from corpus_files where status = 'deleting'")
    .get() ?? { n: -1 };
  expect(n).toBe(0);
}

test("any sequence of calls agrees with the model", async () => {
  const steps = fc.array(
    fc.oneof(
      uploadFile,
      uploadFile,
      createStore,
      attach,
      attach,
      attach,
      detach,
      deleteFile,
      deleteStore,
      prepare,
      rotate,
      settle,
      restart,
    ),
    { minLength: 5, maxLength: 40 },
  );
  await fc.assert(
    fc.asyncProperty(steps, async (sequence) => {
      const world = createWorld();
      const run: Run = { world, tenants: [world.tenants.create("a").id, world.tenants.create("b").id] };
      const model = new Model();
      try {
        for (const step of sequence) await step(model, run);
        await run.world.corpus.idle();
        await expectAgreement(model, run);
      } finally {
        await run.world.remove();
      }
    }),
    { numRuns: Number(process.env.SPANGATE_MODEL_RUNS ?? effort(25, 200)) },
  );
}, 600_000);
