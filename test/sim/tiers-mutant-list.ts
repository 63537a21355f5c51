/** Mistakes in KV files that the simulation has to find, each as a change of the product. */
import type { Mutant } from "../support/mutants.ts";

function mutant(name: string, file: string, find: string, replace: string): Mutant {
  return { name, file, find, replace };
}

const [keeps, loads, objects] = ["worker/tiers/keeps.ts", "worker/tiers/loads.ts", "gateway/kv/objects.ts"];
const filling = "worker/tiers/filling.ts";

export const tiersMutants: readonly Mutant[] = [
  mutant(
    "a file's bytes are not synced",
    keeps,
    "await handle.datasync().finally(() => handle.close());",
    "await handle.close();",
  ),
  mutant("a file's name is not synced", keeps, "await syncFolder(files, folder);", ""),
  mutant(
    "a write is done when a part of it is",
    "worker/tiers/file-system.ts",
    "at += bytesWritten;",
    "at = bytes.byteLength;",
  ),
  mutant(
    "the header is written once, whatever of it",
    keeps,
    "await writeAll(handle, file.firstPage());",
    "await handle.write(file.firstPage());",
  ),
  mutant(
    "unused slots are sealed too",
    keeps,
    "mover.pack(blockId, content.end - content.start, out)",
    "mover.pack(blockId, shape.blockTokens, out)",
  ),
  mutant("a block is packed whatever it holds", keeps, "blockId === undefined ||", "false ||"),
  mutant("a file is not closed", keeps, "await handle.close();", ""),
  mutant(
    "a failed write leaves its files",
    keeps,
    "for (const name of [temporaryName, object.id])",
    "for (const name of [] as string[])",
  ),
  mutant(
    "the worker says nothing of a failed write",
    keeps,
    `emit({ type: "keep failed", objectId: object.id, reason: error instanceof BlockGone ? "gone" : reasonOf(error) });`,
    "",
  ),
  mutant("what is forgotten is loaded on", loads, "if (load !== undefined) this.#end(load);", ""),
  mutant(
    "a load that is over stores its block",
    loads,
    "mayTake: () => !load.isOver && this.#mayTake(load),",
    "mayTake: () => this.#mayTake(load),",
  ),
  mutant(
    "a block is stored behind a hole",
    filling,
    "const isWanted = isChained && blockIds.length > 0;",
    "const isWanted = blockIds.length > 0;",
  ),
  mutant(
    "a row is the commit before the file is there",
    keeps,
    "await files.rename(join(folder, temporaryName), join(folder, object.id));",
    'emit({ type: "kept", objectId: object.id }); await files.rename(join(folder, temporaryName), join(folder, object.id));',
  ),
  mutant(
    "what a seal says is not asked",
    "worker/tiers/object-file.ts",
    "    } catch {\n      return false;\n    }",
    "    } catch {}",
  ),
  mutant(
    "deleted while it is written, and committed",
    objects,
    "    if (pending === undefined) {\n      this.#removal.unlink([objectId]);\n      return;\n    }\n    try {",
    "    if (pending === undefined) return;\n    try {",
  ),
  mutant(
    "deletion forgets what is being written",
    objects,
    "this.#drop((pending) => pending.scopeName === scopeName && keys.has(pending.object.lastKey));",
    "",
  ),
  mutant(
    "a corpus's deletion forgets what is being written",
    objects,
    "this.#drop(({ scopeName }) => names.has(scopeName));",
    "",
  ),
  mutant(
    "a start leaves files without a row",
    objects,
    "this.#removal.unlink(this.#places.open(files, isOff));",
    "this.#places.open(files, isOff);",
  ),
  mutant(
    "a start leaves rows without a file",
    "gateway/kv/places.ts",
    "for (const ids of chunks(missing, removedAtOnce))",
    "for (const ids of [] as string[][])",
  ),
  mutant(
    "a start takes corpora with another salt for its own",
    objects,
    "isOff ? listKvScopes(db).map(({ seq }) => seq) : deadKvScopes(db)",
    "[]",
  ),
  mutant("rows go and are not counted", objects, "this.#places.gone(objects);", ""),
  mutant("rows go and their files stay", objects, "    this.#removal.unlink(objectIds);", ""),
  mutant("rows go and workers are not told", objects, '    this.#broadcast({ type: "forget", objectIds });', ""),
  mutant("a lost worker's writes never end", objects, "this.#writes.lost(workerId)", "[]"),
  mutant("keys of a destroyed scope seal the next one's", objects, "        scopes.forgetKeys();\n", ""),
  mutant(
    "a scope's keys are destroyed once, or never",
    "gateway/kv/removal.ts",
    "this.#retry = setTimeout(() => this.scopes([]), retryMs);",
    "",
  ),
  mutant("the owner's file is not synced", "gateway/kv/folder.ts", "files.fsyncSync(file);", ""),
  mutant(
    "workers are told of what is deleted and has its key still",
    objects,
    "row.onDisk === onDisk && !this.#removal.isOwed(row.scopeSeq)",
    "row.onDisk === onDisk",
  ),
  mutant(
    "what a dropped write left is forgotten when its worker dies",
    "gateway/kv/writes.ts",
    "      this.#dropped.set(object.id, workerId);\n",
    "",
  ),
  mutant("a row is not counted", objects, "    this.account.add([row]);\n", ""),
  mutant(
    "a row that the database refuses leaves its file",
    objects,
    "      this.#removal.unlink([objectId]);\n      this.#room.rest(",
    "      this.#room.rest(",
  ),
  mutant(
    "what is loaded does not know its corpus",
    filling,
    "this.#derivation = new Derivation([object.rootKey]);",
    "this.#derivation = new Derivation([]);",
  ),
  mutant(
    "a load takes blocks that were promised to others",
    filling,
    "mayTake() ? cache.allocate(owner) : undefined",
    "cache.allocate(owner)",
  ),
  mutant(
    "the keys of a load that has ended stay claimed",
    loads,
    "    for (const key of load.claims) this.#claimed.delete(key);\n    load.isOver",
    "    load.isOver",
  ),
  mutant(
    "files of a destroyed scope stay until the next start",
    "gateway/kv/removal.ts",
    "      this.#owed.clear();\n      this.keyless();",
    "      this.#owed.clear();",
  ),
  mutant(
    "a read is done when a part of it is",
    "worker/tiers/file-system.ts",
    "done += bytesRead;",
    "done = into.byteLength;",
  ),
  mutant(
    "the name of the owner's file is not synced",
    "gateway/kv/folder.ts",
    '    syncFile(files, folder, "r");\n',
    "",
  ),
  mutant(
    "rows without a file are counted",
    "gateway/kv/places.ts",
    "account().found(known);",
    "account().found(rows);",
  ),
];
