/**
 * kill -9 of a process that ingests, at moments drawn from the seed: nothing acknowledged is lost, nothing deleted comes
 * back, nothing half-ingested is visible, and the next start finishes what was begun.
 * SPANGATE_CRASH_KILLS sets how often (6, and 40 in the long form).
 */
import { expect, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { listCorpora } from "../../db/corpora.ts";
import { listTenants } from "../../db/tenants.ts";
import { Choices } from "../sim/random.ts";
import { effort } from "../support/effort.ts";
import { testSeed } from "../support/seed.ts";
import { crashText } from "./crash-text.ts";
import { createWorld, type World } from "./world.ts";

const kills = Number(process.env.SPANGATE_CRASH_KILLS ?? effort(6, 40));
const writer = join(import.meta.dir, "crash-writer.ts");

/** What the writers said, over all runs. */
class Acknowledged {
  readonly uploaded = new Map<string, number>();
  readonly attached = new Set<string>();
  /** Announced: may or may not have happened. */
  readonly maybeDeleted = new Set<string>();
  readonly deleted = new Set<string>();

  hear(line: string): void {
    const [what = "", first = "", second = ""] = line.split(" ");
    if (what === "uploaded") this.uploaded.set(second, Number(first));
    if (what === "attached") this.attached.add(second);
    if (what === "deleting") this.maybeDeleted.add(first);
    if (what === "deleted") this.deleted.add(first);
  }

  get next(): number {
    return Math.max(-1, ...this.uploaded.values()) + 1;
  }
}

async function runAndKill(dir: string, heard: Acknowledged, delayMs: number): Promise<void> {
  const child = Bun.spawn([process.execPath, writer, dir, String(heard.next)], { stdout: "pipe", stderr: "inherit" });
  let timer: ReturnType<typeof setTimeout> | undefined;
  let rest = "";
  const decoder = new TextDecoder();
  for await (const bytes of child.stdout) {
    timer ??= setTimeout(() => child.kill("SIGKILL"), delayMs);
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) heard.hear(line);
  }
  clearTimeout(timer);
  await child.exited;
  expect(child.signalCode).toBe("SIGKILL");
}

function expectSound(world: World): void {
  const check = world.db.client.query<{ integrity_check: string }, []>("pragma integrity_check").all();
  expect(check).toEqual([{ integrity_check: "ok" }]);
  expect(world.db.client.query("pragma foreign_key_check").all()).toEqual([]);
}

/** Every visible file is whole, in its fragments and in search. */
async function expectWhole(world: World, heard: Acknowledged, mustBeComplete: boolean): Promise<void> {
  const [tenant] = listTenants(world.db, { limit: 1, order: "asc" }).rows;
  const [store] = tenant === undefined ? [] : listCorpora(world.db, tenant.id, { limit: 1, order: "asc" }).rows;
  if (tenant === undefined || store === undefined) throw new Error("the writer's tenant or store is lost");
  for (const [id, number] of heard.uploaded) {
    if (heard.deleted.has(id)) {
      expect(() => world.corpus.files.get(tenant.id, id)).toThrow("No such object.");
      continue;
    }
    if (heard.maybeDeleted.has(id)) continue;
    expect(world.corpus.files.get(tenant.id, id).byteCount).toBe(crashText(number).length);
    if (!heard.attached.has(id)) continue;
    const row = world.corpus.corpusFiles.get(store, id);
    if (mustBeComplete) expect(row.status).toBe("completed");
    const whole = row.status === "completed" ? crashText(number) : "";
    expect(world.corpus.corpusFiles.texts(store, id).join("")).toBe(whole);
  }
  const request = { tenantId: tenant.id, vectorStoreIds: [store.id], query: "words", maxResults: 50 };
  for (const hit of await world.corpus.retrieve(request)) {
    expect(heard.deleted.has(hit.fileId)).toBe(false);
    expect(world.corpus.corpusFiles.get(store, hit.fileId).status).toBe("completed");
  }
}

test(
  `kill -9 during ingestion, ${kills} times`,
  async () => {
    const dir = mkdtempSync(join(tmpdir(), "spangate-crash-"));
    const heard = new Acknowledged();
    const choices = new Choices(testSeed());
    try {
      for (let kill = 0; kill < kills; kill++) {
        await runAndKill(dir, heard, choices.next() * 120);
        const world = createWorld(dir);
        expectSound(world);
        await expectWhole(world, heard, false);
        // Every other time the next writer recovers, and may be killed while it does.
        if (kill % 2 === 1 || kill === kills - 1) {
          await world.corpus.start();
          await world.corpus.idle();
          expectSound(world);
          await expectWhole(world, heard, true);
          const rows = world.db.client.query<{ n: number }, []>("select count(*) as n from files").get()?.n;
          expect(readdirSync(join(dir, "files"))).toHaveLength(rows ?? -1);
        }
        await world.close();
      }
      expect(heard.uploaded.size).toBeGreaterThanOrEqual(kills);
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  },
  30_000 + kills * 5_000,
);
