/** The mover as a process: its jobs, its end, and what others can see of its keys. */
import { expect, test } from "bun:test";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Mover } from "../../gateway/mover/mover.ts";
import { openBucket } from "../support/bucket.ts";
import { until } from "../support/until.ts";

test("a mover does its jobs, is started again when it was ended, and shows nobody its keys", async () => {
  const bucket = openBucket();
  const folder = mkdtempSync(join(tmpdir(), "spangate-mover-"));
  const access = { endpoint: bucket.endpoint, accessKeyId: "reader", secretAccessKey: "not-to-be-seen" };
  const mover = new Mover({ bucket: "papers", prefix: "kv/a/", access, folder }, { LANG: "C" });
  try {
    const id = "0".repeat(32);
    writeFileSync(join(folder, id), "sealed");
    expect(await mover.do({ is: "put", id, bytes: 6 })).toBeUndefined();
    expect(await mover.do({ is: "list", after: undefined })).toEqual({ ids: [id] } as never);
    await expect(mover.do({ is: "get", id: "1".repeat(32), bytes: 1, aside: "a" })).rejects.toMatchObject({
      failure: "missing",
    });
    const pid = mover.pid ?? 0;
    expect(commandOf(pid)).toContain("mover");
    // Of a process that hides itself others of the same user see nothing; root sees an environment without settings.
    expect(`${commandOf(pid)} ${read(pid, "environ")}`).not.toContain("not-to-be-seen");
    bucket.fault = () => Bun.sleep(60_000).then(() => new Response(""));
    const lost = mover.do({ is: "delete", id });
    lost.catch(() => undefined);
    await until(() => bucket.asked.includes(`DELETE kv/a/${id}`), "the job runs");
    process.kill(pid, "SIGKILL");
    await expect(lost).rejects.toMatchObject({ failure: "bucket" });
    bucket.fault = undefined;
    await mover.do({ is: "delete", id });
    expect(bucket.objects).toEqual({});
    mover.stop();
    await expect(mover.do({ is: "delete", id })).rejects.toMatchObject({ message: "the server stops" });
  } finally {
    mover.stop();
    await bucket.stop();
  }
});

function read(pid: number, name: string): string {
  try {
    return readFileSync(`/proc/${pid}/${name}`, "latin1");
  } catch {
    return "";
  }
}

const commandOf = (pid: number): string => read(pid, "cmdline");
