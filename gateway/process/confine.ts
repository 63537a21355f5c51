/**
 * Limits what another process of the same user may learn of the server, on Linux; on other systems these functions do
 * nothing. A malicious document that takes over the process that reads it runs as the server's own user. Unconfined,
 * that user may open the server's files, its memory, and the environment that the server was started with.
 */
import { CString, type Pointer, ptr, toArrayBuffer } from "bun:ffi";
import { closeSync, existsSync, openSync, statSync } from "node:fs";
import { cFunctions } from "../base/c-library.ts";

const [setDumpable, setNoNewPrivileges] = [4, 38];
/** Landlock's system calls have these numbers on every architecture. */
const [createRuleset, addRule, restrictSelf] = [444, 445, 446];
const askVersion = 1;
const pathBeneath = 1;
/**
 * The number of file rights by Landlock version. Later versions can also restrict the network and signals to other
 * processes, see below.
 */
const fileRightCounts = [0, 13, 14, 15, 15, 16];
const [networkSince, networkRights] = [4, 3n];
const [scopesSince, scopes] = [6, 3n];
const [execute, writeFile, readFile, readFolder] = [1n, 2n, 4n, 8n];

/** A path that a confined process may use: a file, or a folder with everything in it. */
export interface Opened {
  readonly path: string;
  readonly to: "list" | "read" | "write" | "execute";
}

const rightsOf: Readonly<Record<Opened["to"], bigint>> = {
  list: readFolder,
  read: readFile | readFolder,
  write: readFile | readFolder | writeFile,
  execute: readFile | readFolder | execute,
};

function openLibc() {
  if (process.platform !== "linux") return undefined;
  const symbols = {
    prctl: { args: ["i32", "u64", "u64", "u64", "u64"], returns: "i32" },
    syscall: { args: ["i64", "u64", "u64", "u64", "u64"], returns: "i64" },
    getenv: { args: ["ptr"], returns: "ptr" },
    execve: { args: ["ptr", "ptr", "ptr"], returns: "i32" },
  } as const;
  return cFunctions(symbols);
}

/**
 * Runs another program in place of this process, without an environment. The program can open only the named files and
 * folders, reaches no network, and can inspect or signal only processes that it starts itself, which are confined
 * alike. Files that are open stay open. No privilege is needed. Threads that already run would not be confined, which
 * is why a new program has to be started.
 * @returns only where the process cannot be confined, because the system has no Landlock (Linux 5.13 and later)
 */
export function executeConfined(argv: readonly string[], opened: readonly Opened[]): void {
  const libc = openLibc();
  if (libc === undefined) return;
  const version = Number(libc.syscall(createRuleset, 0, 0, askVersion, 0));
  const fileRights = 2n ** BigInt(fileRightCounts[Math.min(version, fileRightCounts.length - 1)] ?? 0) - 1n;
  if (version < 1) return;
  const handled = BigUint64Array.of(
    fileRights,
    ...(version >= networkSince ? [networkRights] : []),
    ...(version >= scopesSince ? [scopes] : []),
  );
  const ruleset = Number(libc.syscall(createRuleset, ptr(handled), handled.byteLength, 0, 0));
  if (ruleset < 0) return;
  for (const { path, to } of opened) {
    if (!existsSync(path)) continue;
    const rights = statSync(path).isDirectory() ? rightsOf[to] : rightsOf[to] & ~readFolder;
    const file = openSync(path, "r");
    const rule = new DataView(new ArrayBuffer(12));
    rule.setBigUint64(0, rights, true);
    rule.setInt32(8, file, true);
    libc.syscall(addRule, ruleset, pathBeneath, ptr(rule.buffer), 0);
    closeSync(file);
  }
  const texts = argv.map((text) => Buffer.from(`${text}\0`));
  const pointers = BigUint64Array.from([...texts.map((text) => BigInt(ptr(text))), 0n]);
  const program = texts[0];
  if (program === undefined || libc.prctl(setNoNewPrivileges, 1, 0, 0, 0) !== 0) return;
  if (Number(libc.syscall(restrictSelf, ruleset, 0, 0, 0)) !== 0) return;
  libc.execve(ptr(program), ptr(pointers), ptr(pointers.subarray(-1)));
  process.exit(1);
}

/**
 * From here on other processes of the same user (root excepted) cannot look into this process, and the named variables'
 * values are erased from the environment that it was started with. Call after the values have been read.
 */
export function hideSelf(variables: readonly string[]): void {
  const libc = openLibc();
  for (const name of variables) {
    const value = libc?.getenv(ptr(Buffer.from(`${name}\0`))) as Pointer | null | undefined;
    if (value === null || value === undefined) continue;
    const byteCount = new CString(value).length;
    if (byteCount > 0) new Uint8Array(toArrayBuffer(value, 0, byteCount)).fill(0);
  }
  libc?.prctl(setDumpable, 0, 0, 0, 0);
}
