/**
 * The server's secret: 32 random bytes in the data folder, mode 0600, made at the first start. API keys'
 * hashes and all salts depend on it, so it is kept apart from the database: a copy of one alone is useless.
 */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { closeSync, fsyncSync, linkSync, openSync, readFileSync, rmSync, statSync, writeSync } from "node:fs";
import { join } from "node:path";
import { getMeta, insertMeta } from "../../db/meta.ts";
import type { Db } from "../../db/open.ts";
import { openSealed, sealBytes } from "../base/sealed.ts";

const secretBytes = 32;
const checkName = "secret_check";

/** Never logged, never serialized: the bytes are private and only derived keys leave. */
export class ServerSecret {
  readonly #bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    if (bytes.byteLength !== secretBytes) throw new Error(`the server secret must be ${secretBytes} bytes`);
    this.#bytes = bytes;
  }

  /** Derives a key for one purpose. Nobody can compute one purpose's key from another's. */
  derive(purpose: string): Uint8Array {
    return createHmac("sha256", this.#bytes).update(`spangate/${purpose}/1`).digest();
  }
}

/** Keeps others' secrets in the database in a form that only this server's secret opens. */
export class Sealer {
  readonly #key: Uint8Array;

  constructor(secret: ServerSecret) {
    this.#key = secret.derive("seal");
  }

  /** @param owner the id of what the text belongs to; sealed for one, it opens for no other */
  seal(text: string, owner: string): Buffer {
    return sealBytes(this.#key, Buffer.from(text, "utf8"), owner);
  }

  /** @throws Error when it was sealed for another, or is damaged */
  open(sealed: Uint8Array, owner: string): string {
    return openSealed(this.#key, sealed, owner).toString("utf8");
  }
}

/**
 * Reads the secret, or makes it for a database that has never had one.
 * @throws Error in one sentence when the secret is missing, damaged, readable by others, or belongs to another database
 */
export function loadServerSecret(dataDir: string, db: Db): ServerSecret {
  const path = join(dataDir, "secret");
  const known = getMeta(db, checkName);
  const bytes = readSecret(path);
  if (bytes === undefined && known !== undefined) {
    throw new Error(`${path} is missing: the database in the same folder was made with it; restore it from a backup`);
  }
  const secret = new ServerSecret(bytes ?? createSecret(path));
  const check = Buffer.from(secret.derive("check"));
  if (known === undefined) insertMeta(db, checkName, check.toString("hex"));
  else if (!timingSafeEqual(check, Buffer.from(known, "hex"))) {
    throw new Error(`${path} is not the secret that the database was made with; restore it from a backup`);
  }
  return secret;
}

function readSecret(path: string): Uint8Array | undefined {
  const stat = statSync(path, { throwIfNoEntry: false });
  if (stat === undefined) return undefined;
  if ((stat.mode & 0o077) !== 0) throw new Error(`${path} is readable by others; set its mode to 0600`);
  if (stat.size !== secretBytes)
    throw new Error(`${path} is damaged: ${secretBytes} bytes expected, found ${stat.size}`);
  return readFileSync(path);
}

/** Writes the file under another name, syncs it, and links it to its own name, so that it is complete or absent. */
function createSecret(path: string): Uint8Array {
  const bytes = randomBytes(secretBytes);
  const aside = `${path}.${process.pid}.tmp`;
  // A start that was killed here may have left this file: in a container the next process has the same process id.
  rmSync(aside, { force: true });
  const file = openSync(aside, "wx", 0o600);
  writeSync(file, bytes);
  fsyncSync(file);
  closeSync(file);
  linkSync(aside, path);
  rmSync(aside);
  const folder = openSync(join(path, ".."), "r");
  fsyncSync(folder);
  closeSync(folder);
  return bytes;
}
