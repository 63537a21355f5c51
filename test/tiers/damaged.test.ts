/** Files that are not what was written: the answer is that of a world without files, and nothing is read twice. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, mkdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import * as systemFiles from "node:fs/promises";
import { join } from "node:path";
import type { KvObject } from "../../worker/contract/kv-object.ts";
import type { FileSystem, OpenFile } from "../../worker/tiers/file-system.ts";
import { eosTokenIds } from "../engine/harness.ts";
import { countUp, submitPlan } from "../engine/plans.ts";
import { referenceAnswer } from "../engine/reference.ts";
import { Random } from "../native/random.ts";
import { effort } from "../support/effort.ts";
import { fakeShape } from "../support/fake-backend.ts";
import { testSeed } from "../support/seed.ts";
import { DiskFolder, keyFrom, openWorld, shape, writeSpans } from "./disk-world.ts";

setDefaultTimeout(1_200_000);

/** The first has two extents, the others a partly filled last block. */
const spans = [countUp(3, 32 * 4 + 30), countUp(40, 21), countUp(71, 9)];
const question = countUp(11, 6);
const message = submitPlan("ask", { spans, question });

let folder: DiskFolder;
let objects: KvObject[];
beforeAll(async () => {
  folder = new DiskFolder();
  objects = await writeSpans(folder.path, spans);
});
afterAll(() => folder[Symbol.dispose]());

interface Outcome {
  readonly tokens: readonly number[];
  readonly found: number;
  readonly failed: readonly string[];
}

async function ask(path: string, known: readonly KvObject[]): Promise<Outcome> {
  const world = openWorld();
  world.engine.tiers.disk?.receive({ type: "catalog", folder: path, objects: known, warm: false });
  world.engine.submit(message);
  await world.settle();
  const failed = world.messages.flatMap((one) => (one.type === "load failed" ? [one.objectId] : []));
  expect(world.engine.tiers.disk?.loads.isBusy).toBe(false);
  return { tokens: world.tokensOf("ask"), found: world.finishedOf("ask").usage.cachedTokens, failed };
}

const expected = referenceAnswer(message, { ...fakeShape, ...shape }, eosTokenIds).tokenIds;
const spanTokens = spans.reduce((sum, { length }) => sum + length, 0);

test("whole files are found in full, with the same answer", async () => {
  expect(await ask(folder.path, objects)).toEqual({ tokens: expected, found: spanTokens, failed: [] });
});

test("unused slots are zeros, and no byte of a block stands in a file", () => {
  const bytes = readFileSync(join(folder.path, objects[0]?.id ?? ""));
  expect(bytes.subarray(0, 8).toString("latin1")).toBe("SPGKV\r\n\x1a");
  expect(bytes.byteLength % 4_096).toBe(0);
});

test("a disk that takes a part of each write gets the whole file", async () => {
  using other = new DiskFolder();
  const files: FileSystem = {
    ...systemFiles,
    open: async (path, flags, mode) => {
      const handle = await systemFiles.open(path, flags, mode);
      const part: OpenFile = {
        write: (bytes, at = 0, length = bytes.length - at) => handle.write(bytes, at, Math.min(length, 1_000)),
        read: (into, at, length, position) => handle.read(into, at, length, position),
        stat: () => handle.stat(),
        datasync: () => handle.datasync(),
        sync: () => handle.sync(),
        close: () => handle.close(),
      };
      return part;
    },
  };
  const written = await writeSpans(other.path, spans, openWorld(undefined, files));
  expect(await ask(other.path, written)).toEqual({ tokens: expected, found: spanTokens, failed: [] });
});

type Damage = (path: string, object: KvObject, random: Random) => KvObject;

/** Each makes one object's file wrong; the answer says what the row says of it then. */
const damages: Readonly<Record<string, Damage>> = {
  flip: (path, object, random) => {
    const bytes = readFileSync(path);
    const at = Math.floor(random.next() * bytes.length);
    bytes[at] = (bytes[at] ?? 0) ^ (1 << Math.floor(random.next() * 8));
    writeFileSync(path, bytes);
    return object;
  },
  cut: (path, object, random) => {
    truncateSync(path, Math.floor(random.next() * readFileSync(path).length));
    return object;
  },
  grow: (path, object, random) => {
    writeFileSync(path, Buffer.concat([readFileSync(path), Buffer.alloc(1 + Math.floor(random.next() * 9_000))]));
    return object;
  },
  zeroedPage: (path, object, random) => {
    const bytes = readFileSync(path);
    const page = Math.floor((random.next() * bytes.length) / 4_096);
    bytes.fill(0, page * 4_096, (page + 1) * 4_096);
    writeFileSync(path, bytes);
    return object;
  },
  segmentsSwapped: (path, object) => {
    const bytes = readFileSync(path);
    const last = Buffer.from(bytes.subarray(-4_096));
    bytes.copyWithin(bytes.length - 4_096, bytes.length - 8_192, bytes.length - 4_096);
    last.copy(bytes, bytes.length - 8_192);
    writeFileSync(path, bytes);
    return object;
  },
  anothersFile: (path, object) => {
    const other = objects.find(({ id }) => id !== object.id);
    copyFileSync(join(folder.path, other?.id ?? ""), path);
    return object;
  },
  anothersKey: (_path, object) => ({ ...object, dataKey: keyFrom(`another than ${object.id}`) }),
  anothersChain: (_path, object) => ({ ...object, previousKey: object.lastKey }),
  otherPosition: (_path, object) => ({ ...object, position: object.position + 4 }),
  otherCount: (_path, object) => ({ ...object, tokenCount: object.tokenCount - 1 }),
  random: (path, object, random) => {
    const bytes = readFileSync(path);
    for (let at = 0; at < bytes.length; at++) bytes[at] = Math.floor(random.next() * 256);
    writeFileSync(path, bytes);
    return object;
  },
  gone: (path, object) => {
    rmSync(path);
    return object;
  },
  folderInstead: (path, object) => {
    rmSync(path);
    mkdirSync(path);
    return object;
  },
};

test("damaged, cut, swapped and foreign files give no wrong token", async () => {
  const random = new Random(testSeed());
  const names = Object.keys(damages);
  const seen = new Map<string, number>();
  for (let round = 0; round < effort(400, 10_000); round++) {
    using copy = new DiskFolder();
    for (const { id } of objects) copyFileSync(join(folder.path, id), join(copy.path, id));
    const name = names[round % names.length] ?? "";
    const victim = Math.floor(random.next() * objects.length);
    const known = objects.map((object, index) => {
      return index === victim ? (damages[name] as Damage)(join(copy.path, object.id), object, random) : object;
    });
    const { tokens, found, failed } = await ask(copy.path, known);
    expect([name, round, tokens]).toEqual([name, round, expected]);
    expect(failed.filter((id) => id !== objects[victim]?.id)).toEqual([]);
    if (found < spanTokens) seen.set(name, (seen.get(name) ?? 0) + 1);
  }
  // Every kind was noticed at least once, so that none of them is a copy that is whole.
  expect([...seen.keys()].sort()).toEqual([...names].sort());
});
