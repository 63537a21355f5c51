/** What has to hold for a data folder and for a server that runs on it, whatever killed the one before. */
import { Database } from "bun:sqlite";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { restoreFolder } from "../../db/backup.ts";
import { type HttpClient, HttpError } from "../../gateway/cli/support/client.ts";
import { type Acknowledged, documentOf } from "./ingestion.ts";

/** @returns what is wrong, one line each */
export function folderFaults(dataDir: string, uploaded: ReadonlyMap<string, number>): readonly string[] {
  const faults: string[] = [];
  const db = new Database(join(dataDir, "spangate.db"), { strict: true });
  try {
    const check = db.query<{ integrity_check: string }, []>("pragma integrity_check").all();
    faults.push(
      ...check.filter((row) => row.integrity_check !== "ok").map((row) => `integrity: ${row.integrity_check}`),
    );
    for (const row of db.query("pragma foreign_key_check").all()) faults.push(`foreign key: ${JSON.stringify(row)}`);
    const find = db.query<{ sha256: string }, [string]>("select sha256 from files where id = ? and deleted_at is null");
    for (const [id, number] of uploaded) {
      const row = find.get(id);
      if (row === null) {
        faults.push(`lost: the row of ${id}`);
        continue;
      }
      const { content } = documentOf(number);
      const found = readIfThere(join(dataDir, "files", id));
      if (found === undefined) faults.push(`lost: the bytes of ${id}`);
      else if (found.toString() !== content) faults.push(`damaged: the bytes of ${id}`);
      else if (new Bun.CryptoHasher("sha256").update(found).digest("hex") !== row.sha256) faults.push(`hash of ${id}`);
    }
  } finally {
    db.close();
  }
  return faults;
}

/** What is wrong with a folder that is made of the backup. */
export function backupFaults(file: string, uploaded: ReadonlyMap<string, number>): readonly string[] {
  const dir = mkdtempSync(join(tmpdir(), "spangate-restored-"));
  try {
    restoreFolder(file, dir);
    return folderFaults(dir, uploaded).map((fault) => `restored: ${fault}`);
  } catch (error) {
    return [`restored: ${error instanceof Error ? error.message : String(error)}`];
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

interface StoreFile {
  readonly id: string;
  readonly status: string;
}

export const settleMs = 60_000;

/**
 * Waits until everything is ingested, then reads it.
 * @param ids files to be read, of those that were acknowledged
 */
export async function serverFaults(
  client: HttpClient,
  storeId: string,
  heard: Acknowledged,
  ids: readonly string[],
): Promise<readonly string[]> {
  const faults: string[] = [];
  const files = `/v1/vector_stores/${storeId}/files`;
  const deadlineMs = performance.now() + settleMs;
  const pending = async () => (await client.json<{ data: StoreFile[] }>("GET", `${files}?filter=in_progress`)).data;
  while ((await pending()).length > 0) {
    if (performance.now() > deadlineMs) return [`files still in progress after ${settleMs} ms`];
    await Bun.sleep(20);
  }
  for (const id of ids) {
    const { text } = documentOf(heard.uploaded.get(id) ?? 0);
    if (!heard.attached.has(id)) continue;
    const { status } = await client.json<StoreFile>("GET", `${files}/${id}`);
    if (status !== "completed") faults.push(`${id} is ${status}`);
    const { data } = await client.json<{ data: { text: string }[] }>("GET", `${files}/${id}/content`);
    const words = (value: string): string => value.split(/\s+/).filter(Boolean).join(" ");
    if (words(data.map((part) => part.text).join(" ")) !== words(text)) faults.push(`by halves: the text of ${id}`);
  }
  for (const id of [...heard.deleted].slice(-20)) {
    const status = await client.json("GET", `/v1/files/${id}`).then(
      () => 200,
      (error: unknown) => (error instanceof HttpError ? error.status : 0),
    );
    if (status !== 404) faults.push(`came back: ${id} (${status})`);
  }
  const search = { query: "document word", max_num_results: 50 };
  const path = `/v1/vector_stores/${storeId}/search`;
  const { data: hits } = await client.json<{ data: { file_id: string }[] }>("POST", path, search);
  for (const { file_id: id } of hits) if (heard.deleted.has(id)) faults.push(`found though deleted: ${id}`);
  return faults;
}

/** Names of uploads on disk that no row has, and the other way round. */
export function strayFiles(dataDir: string): number {
  const db = new Database(join(dataDir, "spangate.db"), { strict: true });
  try {
    const rows = new Set(
      db
        .query<{ id: string }, []>("select id from files")
        .all()
        .map(({ id }) => id),
    );
    return readdirSync(join(dataDir, "files")).filter((name) => !rows.delete(name)).length + rows.size;
  } finally {
    db.close();
  }
}

function readIfThere(path: string): Buffer | undefined {
  try {
    return readFileSync(path);
  } catch {
    return undefined;
  }
}
