/** A disk that is really full, of a size of its own: what was stored can still be deleted, by anybody, also after a kill. */
import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, statfsSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { startServer } from "../../gateway/cli/support/server-process.ts";
import { Choices } from "../sim/random.ts";
import { testSeed } from "../support/seed.ts";
import { startTestServer } from "../support/server.ts";
import { until } from "../support/until.ts";

const choices = new Choices(testSeed());

const disk = mkdtempSync(join(tmpdir(), "spangate-full-disk-"));
/** Only root may mount; elsewhere the same is simulated (test/data/disk.test.ts). */
const isMounted = Bun.spawnSync(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk]).exitCode === 0;
afterAll(() => {
  if (isMounted) Bun.spawnSync(["umount", "-l", disk]);
  rmSync(disk, { recursive: true, force: true });
});

const freeBytes = (): number => {
  const { bsize, bavail } = statfsSync(disk);
  return bsize * bavail;
};

async function fetchStatus(url: string, apiKey: string, path: string, init: RequestInit = {}) {
  const response = await fetch(`${url}${path}`, {
    ...init,
    headers: { authorization: `Bearer ${apiKey}`, ...init.headers },
  });
  const body = (await response.json()) as { id?: string; error?: { code: string }; data?: { id: string }[] };
  return {
    status: response.status,
    id: body.id ?? "",
    code: body.error?.code,
    ids: body.data?.map(({ id }) => id) ?? [],
  };
}

/** Of a disk of 40 MiB. */
const ballastBytes = 2.5 * 1024 * 1024;
const json = { "content-type": "application/json" };

async function upload(url: string, apiKey: string, bytes: number) {
  const form = new FormData();
  form.set("purpose", "user_data");
  form.set(
    "file",
    new File(
      [Uint8Array.from({ length: 65_536 }, () => choices.int(0, 255)), new Uint8Array(bytes)],
      `${crypto.randomUUID()}.txt`,
    ),
  );
  return await fetchStatus(url, apiKey, "/v1/files", { method: "POST", body: form });
}

/** Bytes of somebody else's take all that is left. */
function fillDisk(): void {
  let bytes = 4 * 1024 * 1024;
  for (let at = 0; bytes >= 4_096; at++) {
    try {
      writeFileSync(join(disk, `filler-${at}`), Buffer.alloc(bytes, 1));
    } catch {
      rmSync(join(disk, `filler-${at}`), { force: true });
      bytes /= 2;
    }
  }
}

describe.skipIf(!isMounted)("a full disk", () => {
  test("one tenant cannot fill it; its reserve serves the others; deletions go through when it is full to the last block", async () => {
    const dataDir = join(disk, "data");
    const answer = (tenant: { apiKey: string }, url: string, model: string) =>
      fetchStatus(url, tenant.apiKey, "/v1/responses", {
        method: "POST",
        headers: json,
        body: JSON.stringify({ model, input: "Hello", max_output_tokens: 4 }),
      });
    const server = await startTestServer({ model: "one-layer", dataDir });
    const { url, model, adminKey } = server;
    const [greedy, second, other] = [
      await server.tenant("greedy"),
      await server.tenant("second"),
      await server.tenant("other"),
    ];
    const remove = (path: string, key = adminKey) => fetchStatus(url, key, path, { method: "DELETE" });
    const limitsPath = ({ id }: { id: string }) => `/admin/v1/tenants/${id}/limits`;
    const fill = async (tenant: { apiKey: string }) => {
      let last = await upload(url, tenant.apiKey, 1024 * 1024);
      while (last.status === 200) last = await upload(url, tenant.apiKey, 1024 * 1024);
      return last;
    };
    await until(() => freeBytes() < 38 * 1024 * 1024, "the ballast is there");
    expect(await fill(greedy)).toMatchObject({ status: 429, code: "quota_exceeded" });
    const leftBytes = freeBytes();
    expect(leftBytes).toBeGreaterThan(15 * 1024 * 1024);
    // A limit of its own is no promise beyond the disk.
    for (const tenant of [greedy, second]) {
      const body = JSON.stringify({ storage_bytes: 2 ** 40 });
      await fetchStatus(url, adminKey, limitsPath(tenant), { method: "PUT", headers: json, body });
    }
    expect(await fill(second)).toMatchObject({ status: 507, code: "storage_full" });
    expect(freeBytes()).toBeGreaterThan(4 * 1024 * 1024);
    const kept = await answer(other, url, model);
    expect(kept.status).toBe(200);
    const { ids: keyIds } = await fetchStatus(url, adminKey, `/admin/v1/tenants/${second.id}/keys`);
    const files = (await fetchStatus(url, second.apiKey, "/v1/files")).ids;
    fillDisk();
    expect(freeBytes()).toBeLessThan(64 * 1024);
    expect((await answer(other, url, model)).code).toBe("storage_full");
    for (const id of files.slice(0, 3)) expect((await remove(`/v1/files/${id}`, second.apiKey)).status).toBe(200);
    await until(
      () => (statSync(join(dataDir, "ballast"), { throwIfNoEntry: false })?.size ?? 0) >= ballastBytes,
      "the files' bytes are gone, and there is a ballast again",
    );
    fillDisk();
    server.process.kill("SIGKILL");
    await server.process.exited;
    const env = { SPANGATE_LOG: "warn", SPANGATE_PORT: "0", SPANGATE_DATA: dataDir, SPANGATE_ADMIN_KEY: adminKey };
    const again = await startServer({ env });
    const removeAgain = (path: string, key = adminKey) => fetchStatus(again.url, key, path, { method: "DELETE" });
    expect((await removeAgain(`/v1/responses/${kept.id}`, other.apiKey)).status).toBe(200);
    expect((await removeAgain(`/admin/v1/keys/${keyIds[0]}`)).status).toBe(200);
    expect((await fetchStatus(again.url, second.apiKey, "/v1/files")).status).toBe(401);
    for (const { id } of [greedy, second]) expect((await removeAgain(`/admin/v1/tenants/${id}`)).status).toBe(200);
    await until(() => freeBytes() > 15 * 1024 * 1024, "what the tenants had is gone");
    expect((await upload(again.url, other.apiKey, 1024)).status).toBe(200);
    await again.stop();
  }, 120_000);
});
