/**
 * kill -9 of the gateway while clients ingest and backups are made, again and again on one data folder. Nothing that
 * was acknowledged may be lost or come back, and a backup is whole or is not there.
 */
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { HttpClient } from "../../gateway/cli/support/client.ts";
import { repositoryRoot } from "../../gateway/cli/support/setup.ts";
import { Choices } from "../sim/random.ts";
import { effort } from "../support/effort.ts";
import { oneLayerFolder } from "../support/one-layer.ts";
import { testSeed } from "../support/seed.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { until } from "../support/until.ts";
import { backupFaults, folderFaults, serverFaults, settleMs, strayFiles } from "./data-folder.ts";
import { Acknowledged, ingest } from "./ingestion.ts";

export interface GatewayKillPlan {
  readonly times: number;
  readonly say: (line: string) => void;
}

export interface GatewayKillReport {
  readonly kills: number;
  /** Of those, while the server started. */
  readonly killsAtStart: number;
  readonly uploaded: number;
  readonly attached: number;
  readonly deleted: number;
  /** Backups that were made, and those that were killed with the server. */
  readonly backups: number;
  readonly backupsKilled: number;
  readonly faults: readonly string[];
}

const writers = 3;
const longestLifeMs = effort(500, 900);
/** Every so often a backup runs beside, and every so often the server is killed before it is up. */
const backupEvery = 3;
const startKillEvery = 5;
/** Files that are read after each start: the latest, which the kill was nearest to. All of them are read at the end. */
const filesRead = 60;

export async function killGateways({ times, say }: GatewayKillPlan): Promise<GatewayKillReport> {
  const dir = mkdtempSync(join(tmpdir(), "spangate-kill-gateway-"));
  try {
    return await new Rounds(dir, say).run(times);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

class Rounds {
  readonly #dataDir: string;
  readonly #dir: string;
  readonly #say: (line: string) => void;
  readonly #heard = new Acknowledged();
  readonly #faults: string[] = [];
  readonly #counts = { killsAtStart: 0, backups: 0, backupsKilled: 0 };
  readonly #choices = new Choices(testSeed());
  #apiKey = "";
  #storeId = "";

  constructor(dir: string, say: (line: string) => void) {
    this.#dir = dir;
    this.#dataDir = join(dir, "data");
    this.#say = say;
  }

  async run(times: number): Promise<GatewayKillReport> {
    for (let kill = 1; kill <= times; kill++) {
      // The first start makes what the others find.
      const atStart = kill % startKillEvery === 0 && this.#apiKey !== "";
      if (atStart) await this.#killStart();
      else await this.#liveAndDie(kill);
      this.#note(folderFaults(this.#dataDir, this.#liveUploads()), kill);
      if (kill % 10 === 0)
        this.#say(`${kill} kills, ${this.#heard.uploaded.size} uploads, ${this.#faults.length} faults`);
    }
    const server = await this.#start();
    this.#note(await this.#read(server, this.#heard.live()), times);
    // What was deleted is taken away in the background, and what a killed upload left after the start.
    const isSwept = () => strayFiles(this.#dataDir) === 0;
    await until(isSwept, "every upload on disk has a row, and every row its bytes", settleMs).catch(() => undefined);
    await server.process.stop();
    const stray = strayFiles(this.#dataDir);
    if (stray > 0) this.#faults.push(`${stray} uploads without a row, or rows without their bytes`);
    const { uploaded, attached, deleted } = this.#heard;
    return {
      kills: times,
      ...this.#counts,
      uploaded: uploaded.size,
      attached: attached.size,
      deleted: deleted.size,
      faults: this.#faults,
    };
  }

  /** A server's whole life: it recovers, is read, takes in, and is killed. */
  async #liveAndDie(kill: number): Promise<void> {
    const server = await this.#start();
    if (this.#apiKey === "") await this.#open(server);
    this.#note(await this.#read(server, this.#heard.live().slice(-filesRead)), kill);
    const workers = await server.admin.json<{ data: { pid: number | null }[] }>("GET", "/admin/v1/workers");
    const client = this.#clientOf(server);
    const uploadedBefore = this.#heard.uploaded.size;
    const writing = Array.from({ length: writers }, () => ingest(client, this.#storeId, this.#heard).catch(endOf));
    const lifeMs = 50 + this.#choices.next() * longestLifeMs;
    const backup = kill % backupEvery === 0 ? this.#backUp(kill, lifeMs) : undefined;
    await Bun.sleep(lifeMs);
    // On a busy machine it lives for as long as it takes to acknowledge one upload: what is there to lose otherwise?
    await until(() => this.#heard.uploaded.size > uploadedBefore, "an upload is acknowledged").catch(() => undefined);
    server.process.kill("SIGKILL");
    await server.process.exited;
    const ends = await Promise.all(writing);
    this.#note(
      ends.filter((end) => end !== undefined),
      kill,
    );
    await backup;
    await this.#untilGone(workers.data.flatMap(({ pid }) => (pid === null ? [] : [pid])));
  }

  /** Killed while it recovers. */
  async #killStart(): Promise<void> {
    this.#counts.killsAtStart += 1;
    const program = join(repositoryRoot, "gateway", "main.ts");
    const own = { SPANGATE_DATA: this.#dataDir, SPANGATE_MODEL: oneLayerFolder(), SPANGATE_PORT: "0" };
    const env = { ...process.env, ...own, SPANGATE_LOG: "error" };
    const child = Bun.spawn([process.execPath, program], { env, stdio: ["ignore", "ignore", "ignore"] });
    await Bun.sleep(50 + this.#choices.next() * 500);
    child.kill("SIGKILL");
    await child.exited;
  }

  /** Made by a process of its own, which every other time dies with the server. */
  async #backUp(kill: number, lifeMs: number): Promise<void> {
    const before = this.#liveUploads();
    const target = join(this.#dir, `backup-${kill}`);
    const program = join(repositoryRoot, "gateway", "cli", "main.ts");
    const args = [process.execPath, program, "backup", target, "--data", this.#dataDir];
    await Bun.sleep(this.#choices.next() * lifeMs * 0.5);
    const child = Bun.spawn(args, { stdio: ["ignore", "ignore", "pipe"] });
    const isKilled = kill % (2 * backupEvery) === 0;
    if (isKilled) setTimeout(() => child.kill("SIGKILL"), lifeMs * 0.5);
    const [errors, code] = await Promise.all([new Response(child.stderr).text(), child.exited]);
    if (existsSync(target)) {
      this.#counts.backups += 1;
      // What was deleted while the backup was made may be in it or not.
      const whole = new Map([...before].filter(([id]) => !this.#heard.maybeDeleted.has(id)));
      this.#note(backupFaults(target, whole), kill);
    } else if (isKilled) this.#counts.backupsKilled += 1;
    else this.#faults.push(`kill ${kill}: no backup, exit code ${code}: ${errors.trim()}`);
    rmSync(target, { force: true });
  }

  async #start(): Promise<TestServer> {
    return await startTestServer({ model: "one-layer", dataDir: this.#dataDir });
  }

  async #open(server: TestServer): Promise<void> {
    const { client, apiKey } = await server.tenant("kill");
    this.#apiKey = apiKey;
    this.#storeId = (await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "kill" })).id;
  }

  #clientOf({ url }: TestServer): HttpClient {
    return new HttpClient({ url, apiKey: this.#apiKey });
  }

  #read(server: TestServer, ids: readonly string[]): Promise<readonly string[]> {
    return serverFaults(this.#clientOf(server), this.#storeId, this.#heard, ids);
  }

  /** Files that have to be there. */
  #liveUploads(): ReadonlyMap<string, number> {
    return new Map(this.#heard.live().map((id) => [id, this.#heard.uploaded.get(id) ?? 0]));
  }

  #note(faults: readonly string[], kill: number): void {
    this.#faults.push(...faults.map((fault) => `kill ${kill}: ${fault}`));
  }

  /** Workers end by themselves when their gateway has gone. */
  async #untilGone(pids: readonly number[]): Promise<void> {
    const deadlineMs = performance.now() + 10_000;
    while (pids.some(isAlive)) {
      if (performance.now() > deadlineMs) {
        this.#faults.push("a worker goes on without its gateway");
        return;
      }
      await Bun.sleep(10);
    }
  }
}

/** A writer ends when the server is gone; an answer that refuses is a fault. */
function endOf(error: unknown): string | undefined {
  return error instanceof Error && "status" in error ? error.message : undefined;
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}
