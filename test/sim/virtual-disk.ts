/**
 * A disk with one folder, in memory. What is asked of it waits until the simulation lets it happen, in any order; a
 * process that ends gets no answer any more. Bytes are safe from a power cut once their file is synced, and names once
 * the folder is; of everything else a cut leaves what the seed says, torn by pages. It also flips bits, fills up, takes
 * less than it was given, fails, refuses to write, and lies about being in sync.
 */
import { posix } from "node:path";
import type { FolderFiles } from "../../gateway/kv/folder.ts";
import type { FileSystem, OpenFile } from "../../worker/tiers/file-system.ts";
import type { Choices } from "./random.ts";

const pageBytes = 4_096;

export interface DiskFaults {
  /** Parts of all operations. */
  errors: number;
  short: number;
  isReadOnly: boolean;
  /** Says that it is in sync, and is not. */
  lies: boolean;
  capacityBytes: number;
}

const errno = (code: string): Error => Object.assign(new Error(code), { code });

class Inode {
  #memory: Uint8Array = new Uint8Array(0);
  bytes: Uint8Array = this.#memory;
  /** What a power cut leaves. */
  durable: Uint8Array = new Uint8Array(0);
  /** It is not what was written any more, and nobody could help it. */
  isDamaged = false;

  sync(): void {
    this.durable = this.bytes.slice();
  }

  append(bytes: Uint8Array): void {
    const [from, end] = [this.bytes.length, this.bytes.length + bytes.length];
    if (end > this.#memory.length || this.bytes.buffer !== this.#memory.buffer) {
      this.#memory = new Uint8Array(2 * end);
      this.#memory.set(this.bytes);
    }
    this.#memory.set(bytes, from);
    this.bytes = this.#memory.subarray(0, end);
  }

  /** Each page that is not synced is as it was before, as it is now, or zeros. */
  losePower(choices: Choices): void {
    const size = choices.int(Math.min(this.durable.length, this.bytes.length), this.bytes.length);
    const left = new Uint8Array(Math.max(size, this.durable.length));
    left.set(this.durable);
    for (let at = 0; at < left.length; at += pageBytes) {
      const now = this.bytes.subarray(at, Math.min(at + pageBytes, left.length));
      const isSynced = at + now.length <= this.durable.length && now.every((byte, i) => byte === this.durable[at + i]);
      if (!isSynced && choices.chance(0.6)) left.set(now, at);
    }
    this.bytes = left;
    this.sync();
  }

  replace(bytes: Uint8Array): void {
    this.bytes = bytes;
    this.sync();
    this.isDamaged = true;
  }
}

/** Names that change together, and what they name then; undefined: the name is gone. */
type Change = readonly (readonly [name: string, inode: Inode | undefined])[];

interface Operation {
  readonly processId: number;
  readonly apply: () => void;
}

interface Handle {
  readonly processId: number;
  readonly inode: Inode | undefined;
}

export class VirtualDisk {
  readonly faults: DiskFaults = {
    ...{ errors: 0, short: 0, isReadOnly: false, lies: false, capacityBytes: Number.POSITIVE_INFINITY },
  };
  /** What the product did wrong with a file: used it after it was closed, or closed it twice. */
  readonly misuses: string[] = [];
  /** Files that somebody could not remove. */
  readonly stuck = new Set<string>();
  readonly #choices: Choices;
  readonly #folders = new Set<string>();
  #names = new Map<string, Inode>();
  #durableNames = new Map<string, Inode>();
  /** Changes of names since the folder was synced. */
  #changes: Change[] = [];
  readonly #operations: Operation[] = [];
  readonly #handles = new Set<Handle>();
  readonly #ended = new Set<number>();
  /** Files that were opened at once, by their numbers; undefined: the folder. */
  readonly #openNumbers = new Map<number, Inode | undefined>();
  #openCount = 0;

  constructor(choices: Choices) {
    this.#choices = choices;
  }

  /** Operations that wait. */
  get waiting(): number {
    return this.#operations.length;
  }

  get openHandles(): number {
    return this.#handles.size + this.#openNumbers.size;
  }

  get usedBytes(): number {
    let sum = 0;
    for (const { bytes } of this.#names.values()) sum += bytes.length;
    return sum;
  }

  /** Names of files, without those of folders. */
  get names(): readonly string[] {
    return [...this.#names.keys()];
  }

  /** What a file holds; undefined when there is none. */
  read(name: string): Uint8Array | undefined {
    return this.#names.get(name)?.bytes;
  }

  /** What a power cut would leave of a file for certain. */
  durable(name: string): Uint8Array | undefined {
    return this.#durableNames.get(name)?.durable;
  }

  /** Whether the file is not what was written, by no fault of those who wrote it. */
  isDamaged(name: string): boolean {
    return this.#names.get(name)?.isDamaged === true;
  }

  /** One of the waiting operations happens. */
  next(): void {
    const [operation] = this.#operations.splice(this.#choices.int(0, this.#operations.length - 1), 1);
    operation?.apply();
  }

  /** A process is killed: what it had asked for happens or not, and it never hears of it. */
  end(processId: number): void {
    this.#ended.add(processId);
    for (let at = this.#operations.length - 1; at >= 0; at--) {
      if (this.#operations[at]?.processId !== processId) continue;
      const [operation] = this.#operations.splice(at, 1);
      if (this.#choices.chance(0.5)) operation?.apply();
    }
    for (const handle of this.#handles) if (handle.processId === processId) this.#handles.delete(handle);
  }

  /** All processes have to be ended before. */
  losePower(): void {
    const choices = this.#choices;
    const inOrder = choices.chance(0.7);
    const kept = inOrder ? choices.int(0, this.#changes.length) : 0;
    this.#changes.forEach((change, index) => {
      if (inOrder ? index < kept : choices.chance(0.5)) apply(this.#durableNames, change);
    });
    this.#changes = [];
    this.#names = new Map(this.#durableNames);
    for (const inode of new Set(this.#names.values())) inode.losePower(this.#choices);
  }

  /** A file is not what was written any more: a bit of it, a page, or its length. */
  damage(): void {
    const names = this.names.filter((name) => /^[0-9a-f]{32}$/.test(name));
    if (names.length === 0) return;
    const choices = this.#choices;
    const inode = this.#names.get(choices.pick(names));
    if (inode === undefined || inode.bytes.length === 0) return;
    const bytes = inode.bytes.slice();
    const at = choices.int(0, bytes.length - 1);
    switch (choices.pick(["bit", "bit", "page", "shorter", "longer"] as const)) {
      case "bit":
        bytes[at] = (bytes[at] ?? 0) ^ (1 << choices.int(0, 7));
        return inode.replace(bytes);
      case "page":
        return inode.replace(
          bytes.fill(0xa5, at - (at % pageBytes), Math.min(bytes.length, at - (at % pageBytes) + pageBytes)),
        );
      case "shorter":
        return inode.replace(bytes.subarray(0, at));
      case "longer":
        return inode.replace(Buffer.concat([bytes, bytes.subarray(0, 1)]));
    }
  }

  /** The disk as a process has it. */
  of(processId: number): FileSystem & FolderFiles {
    return {
      open: (path, flags) => this.#ask(processId, () => this.#open(processId, path, flags)),
      rename: (from, to) => this.#ask(processId, () => this.#rename(from, to)),
      unlink: (path) =>
        this.#ask(
          processId,
          () => this.#unlink(path),
          () => this.#noteStuck(path),
        ),
      mkdirSync: (path) => this.#now(processId, () => void this.#folders.add(path)),
      readdirSync: () => this.#now(processId, () => [...this.names]),
      existsSync: (path) => this.#now(processId, () => this.#names.has(posix.basename(path))),
      readFileSync: (path) => this.#now(processId, () => Buffer.from(this.#inode(path).bytes).toString()),
      openSync: (path, flags) => this.#now(processId, () => this.#openNow(path, flags)),
      writeSync: (file, text) =>
        this.#now(processId, () => this.#write(this.#openNumbers.get(file), Buffer.from(text))),
      fsyncSync: (file) => this.#now(processId, () => this.#sync(this.#openNumbers.get(file))),
      closeSync: (file) => void this.#openNumbers.delete(file),
      renameSync: (from, to) => this.#now(processId, () => this.#rename(from, to)),
    };
  }

  #ask<Answer>(processId: number, work: () => Answer, onFailure?: () => void): Promise<Answer> {
    const { promise, resolve, reject } = Promise.withResolvers<Answer>();
    if (this.#ended.has(processId)) return promise;
    const apply = (): void => {
      const isHeard = !this.#ended.has(processId);
      try {
        const answer = this.#orFail(work);
        if (isHeard) resolve(answer);
      } catch (error) {
        onFailure?.();
        if (isHeard) reject(error);
      }
    };
    this.#operations.push({ processId, apply });
    return promise;
  }

  #now<Answer>(processId: number, work: () => Answer): Answer {
    if (this.#ended.has(processId)) throw new Error("the process has ended");
    return this.#orFail(work);
  }

  #orFail<Answer>(work: () => Answer): Answer {
    if (this.#choices.chance(this.faults.errors)) throw errno("EIO");
    return work();
  }

  #mayWrite(): void {
    if (this.faults.isReadOnly) throw errno("EROFS");
  }

  #inode(path: string): Inode {
    const inode = this.#names.get(posix.basename(path));
    if (inode === undefined) throw errno("ENOENT");
    return inode;
  }

  #change(...change: Change): void {
    apply(this.#names, change);
    this.#changes.push(change);
  }

  #open(processId: number, path: string, flags: "wx" | "r"): OpenFile {
    if (flags === "r") return this.#handle(processId, this.#folders.has(path) ? undefined : this.#inode(path));
    this.#mayWrite();
    const name = posix.basename(path);
    if (this.#names.has(name)) throw errno("EEXIST");
    return this.#handle(processId, this.#make(name));
  }

  #make(name: string): Inode {
    const inode = new Inode();
    this.#change([name, inode]);
    return inode;
  }

  #rename(from: string, to: string): void {
    this.#mayWrite();
    const inode = this.#inode(from);
    this.#change([posix.basename(to), inode], [posix.basename(from), undefined]);
  }

  #unlink(path: string): void {
    this.#mayWrite();
    this.#inode(path);
    this.#change([posix.basename(path), undefined]);
  }

  #noteStuck(path: string): void {
    const name = posix.basename(path);
    if (this.#names.has(name)) this.stuck.add(name);
  }

  #openNow(path: string, flags: "w" | "r"): number {
    const name = posix.basename(path);
    let inode = flags === "r" && this.#folders.has(path) ? undefined : this.#names.get(name);
    if (flags === "w") {
      this.#mayWrite();
      inode ??= this.#make(name);
      inode.bytes = new Uint8Array(0);
    }
    this.#openCount += 1;
    this.#openNumbers.set(this.#openCount, inode);
    return this.#openCount;
  }

  #handle(processId: number, inode: Inode | undefined): OpenFile {
    const handle = { processId, inode };
    this.#handles.add(handle);
    const ask = <Answer>(what: string, work: () => Answer): Promise<Answer> => {
      const isUsable = this.#handles.has(handle) || this.#ended.has(processId);
      if (!isUsable) this.misuses.push(`${what} of a file that is closed`);
      return this.#ask(processId, work);
    };
    return {
      write: (bytes, at = 0, length = bytes.length - at) => {
        return ask("write", () => ({ bytesWritten: this.#write(inode, bytes.subarray(at, at + length)) }));
      },
      read: (into, at, length, position) => {
        return ask("read", () => ({ bytesRead: this.#read(inode, into.subarray(at, at + length), position) }));
      },
      stat: () => ask("stat", () => ({ size: inode?.bytes.length ?? 0 })),
      datasync: () => ask("datasync", () => this.#sync(inode)),
      sync: () => ask("sync", () => this.#sync(inode)),
      close: () => {
        const isOpen = this.#handles.delete(handle) || this.#ended.has(processId);
        if (!isOpen) this.misuses.push("close of a file that is closed");
        return Promise.resolve();
      },
    };
  }

  #write(inode: Inode | undefined, bytes: Uint8Array): number {
    this.#mayWrite();
    const room = Math.max(0, this.faults.capacityBytes - this.usedBytes);
    if (inode === undefined || (room === 0 && bytes.length > 0)) throw errno(inode === undefined ? "EBADF" : "ENOSPC");
    const isShort = bytes.length > 1 && this.#choices.chance(this.faults.short);
    const count = Math.min(room, isShort ? this.#choices.int(1, bytes.length) : bytes.length);
    inode.append(bytes.subarray(0, count));
    return count;
  }

  #read(inode: Inode | undefined, into: Uint8Array, position: number): number {
    if (inode === undefined) throw errno("EISDIR");
    const there = inode.bytes.subarray(position, position + into.length);
    const isShort = there.length > 1 && this.#choices.chance(this.faults.short);
    const count = isShort ? this.#choices.int(1, there.length) : there.length;
    into.set(there.subarray(0, count));
    return count;
  }

  #sync(inode: Inode | undefined): void {
    if (this.faults.lies) return;
    if (inode !== undefined) return inode.sync();
    this.#durableNames = new Map(this.#names);
    this.#changes = [];
  }
}

function apply(names: Map<string, Inode>, change: Change): void {
  for (const [name, inode] of change) {
    if (inode === undefined) names.delete(name);
    else names.set(name, inode);
  }
}
