/**
 * The hub's cache on the disk, as its own tools lay it out (huggingface.co/docs/hub/local-cache): files by their hash in
 * `blobs`, a folder for each commit in `snapshots` with links to them, and in `refs` the commit of a branch or a tag. So
 * a cache that other tools filled is used as it is, and they use what is loaded here.
 */
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statfsSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, relative } from "node:path";
import { commitPattern, type HubModel } from "./hub-model.ts";
import { type HubFile, shardsOf } from "./listing.ts";

export class ModelCache {
  readonly #root: string;
  readonly #folder: string;
  readonly #lockFolder: string;

  constructor(cacheDir: string, { id }: HubModel) {
    const name = `models--${id.replace("/", "--")}`;
    this.#root = cacheDir;
    this.#folder = join(cacheDir, name);
    this.#lockFolder = join(cacheDir, ".locks", name);
  }

  /** The snapshot of a revision, when it has all that a server needs; else undefined. */
  wholeSnapshot(revision: string): string | undefined {
    const commit = commitPattern.test(revision) ? revision : this.#readRef(revision);
    if (commit === undefined) return undefined;
    const folder = this.snapshotOf(commit);
    const has = (name: string): boolean => existsSync(join(folder, name));
    if (!has("config.json") || !has("tokenizer.json")) return undefined;
    const index = join(folder, "model.safetensors.index.json");
    const weights = existsSync(index) ? (shardsOf(readFileSync(index, "utf8")) ?? []) : ["model.safetensors"];
    return weights.length > 0 && weights.every(has) ? folder : undefined;
  }

  snapshotOf(commit: string): string {
    return join(this.#folder, "snapshots", commit);
  }

  blobOf({ blob }: HubFile): string {
    return join(this.#folder, "blobs", blob);
  }

  /** The file that is locked while a blob is loaded. */
  lockOf({ blob }: HubFile): string {
    return join(this.#lockFolder, `${blob}.lock`);
  }

  hasBlob(file: HubFile): boolean {
    return sizeOf(this.blobOf(file)) === file.size;
  }

  /** Bytes that are still to be loaded, with what an earlier pull has left. */
  missingBytes(file: HubFile): number {
    if (this.hasBlob(file)) return 0;
    return Math.max(0, file.size - (sizeOf(partialOf(this.blobOf(file))) ?? 0));
  }

  /** Puts a blob into a commit's snapshot. */
  link(commit: string, file: HubFile): void {
    const path = join(this.snapshotOf(commit), file.path);
    const blob = this.blobOf(file);
    mkdirSync(dirname(path), { recursive: true });
    // Where a file system has no links, other tools put the file itself there.
    const there = lstatSync(path, { throwIfNoEntry: false });
    if (there?.isFile() && there.size === file.size) return;
    const made = `${path}.${process.pid}.link`;
    rmSync(made, { force: true });
    symlinkSync(relative(dirname(path), blob), made);
    renameSync(made, path);
  }

  /** Says which commit a branch or a tag is. */
  writeRef(revision: string, commit: string): void {
    if (revision === commit) return;
    const path = this.#refOf(revision);
    mkdirSync(dirname(path), { recursive: true });
    const made = `${path}.${process.pid}`;
    writeFileSync(made, commit);
    renameSync(made, path);
  }

  /** Bytes that are free on the cache's disk. */
  freeBytes(): number {
    let there = this.#root;
    while (!existsSync(there)) there = dirname(there);
    const { bsize, bavail } = statfsSync(there);
    return bsize * bavail;
  }

  #readRef(revision: string): string | undefined {
    const path = this.#refOf(revision);
    const text = statSync(path, { throwIfNoEntry: false })?.isFile() ? readFileSync(path, "utf8").trim() : "";
    return commitPattern.test(text) ? text : undefined;
  }

  #refOf(revision: string): string {
    return join(this.#folder, "refs", ...revision.split("/"));
  }
}

/** Where a blob lies until it is whole, as other tools have it too. */
export const partialOf = (blob: string): string => `${blob}.incomplete`;

const sizeOf = (path: string): number | undefined => statSync(path, { throwIfNoEntry: false })?.size;
