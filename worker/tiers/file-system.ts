/**
 * What KV files need of a file system. `node:fs/promises` is one as it is; simulations put another in its place, which
 * flips bits, fills up and loses power.
 */
import { Damaged } from "./object-file.ts";

/** An open file, or a folder that was opened to be synced. */
export interface OpenFile {
  /** By which the system knows it; absent: it is no file of the system's. */
  readonly fd?: number;
  /** May write less than it was given. */
  write(bytes: Uint8Array, at?: number, length?: number): Promise<{ readonly bytesWritten: number }>;
  /** May read less than it was asked for; nothing: the file ends there. */
  read(into: Uint8Array, at: number, length: number, position: number): Promise<{ readonly bytesRead: number }>;
  stat(): Promise<{ readonly size: number }>;
  datasync(): Promise<void>;
  sync(): Promise<void>;
  close(): Promise<void>;
}

export interface FileSystem {
  /** @param flags `wx` makes a file that must not be there yet, `r` reads */
  open(path: string, flags: "wx" | "r", mode?: number): Promise<OpenFile>;
  rename(from: string, to: string): Promise<void>;
  unlink(path: string): Promise<void>;
}

/** A write may take less than it was given. */
export async function writeAll(handle: OpenFile, bytes: Uint8Array): Promise<void> {
  for (let at = 0; at < bytes.byteLength; ) {
    const { bytesWritten } = await handle.write(bytes, at, bytes.byteLength - at);
    if (bytesWritten === 0) throw new Error("ENOSPC");
    at += bytesWritten;
  }
}

/** Names in the folder outlive a power cut from here on. */
export async function syncFolder(files: FileSystem, folder: string): Promise<void> {
  const handle = await files.open(folder, "r");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Fills `into` with what the file has from `at` on. @throws Damaged when the file ends before */
export async function readAt(handle: OpenFile, at: number, into: Uint8Array): Promise<void> {
  for (let done = 0; done < into.byteLength; ) {
    const { bytesRead } = await handle.read(into, done, into.byteLength - done, at + done);
    if (bytesRead === 0) throw new Damaged("the file ends too early");
    done += bytesRead;
  }
}
