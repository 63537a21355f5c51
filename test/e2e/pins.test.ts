/** Pinned fragments of a real server: counted, refused beyond the quota, and there again after a worker was killed. */
import { expect, test } from "bun:test";
import { HttpError } from "../../gateway/cli/support/client.ts";
import { addFile, listAll, waitForFile } from "../../gateway/cli/support/operations.ts";
import { cacheOf, firstWorkerOf, killWorker } from "../support/operator.ts";
import { startTestServer } from "../support/server.ts";
import { until } from "../support/until.ts";

interface Fragment {
  readonly id: string;
  readonly blocks: number;
  readonly pinned: boolean;
  readonly resident: readonly object[];
}

test("a pin outlives the worker; a quota bounds it; evicting ends it", async () => {
  await using server = await startTestServer({ model: "one-layer" });
  const { client, id: tenantId } = await server.tenant("pinner");
  const { id: storeId } = await client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "s" });
  const text = Array.from({ length: 60 }, (_, i) => `Sentence ${i} tells of amber, birch and cedar in the hall.`);
  await waitForFile(client, storeId, await addFile(client, storeId, "a.txt", new Blob([text.join("\n\n")])));
  const path = `/admin/v1/vector_stores/${storeId}/fragments`;
  const fragments = () => listAll<Fragment>(client, path);
  const [first, second] = await fragments();
  if (first === undefined || second === undefined) throw new Error("there are too few fragments");
  const act = (action: string, id = first.id) => client.json<Fragment>("POST", `/admin/v1/fragments/${id}/${action}`);
  const pinnedBlocks = async (): Promise<number> => (await cacheOf(server, tenantId))?.pinned_blocks ?? 0;

  expect(await act("pin")).toMatchObject({ id: first.id, pinned: true });
  await until(async () => (await pinnedBlocks()) === first.blocks, "the fragment is held and counted");
  await killWorker(server);
  const isBack = async (): Promise<boolean> =>
    (await firstWorkerOf(server)).restarts === 1 && (await pinnedBlocks()) === first.blocks;
  await until(isBack, "the next worker holds the fragment");
  const after = await fragments();
  expect(after.filter(({ resident }) => resident.length > 0).map(({ id }) => id)).toEqual([first.id]);

  await server.admin.json("PUT", `/admin/v1/tenants/${tenantId}/limits`, { kv_bytes: 1 });
  const refused = await act("pin", second.id).catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(HttpError);
  expect(refused).toMatchObject({ status: 429, code: "quota_exceeded" });
  expect(await act("evict")).toMatchObject({ pinned: false });
  const isGone = async (): Promise<boolean> => (await fragments()).every(({ resident }) => resident.length === 0);
  await until(isGone, "the fragment is evicted");
  expect(await pinnedBlocks()).toBe(0);
  const stranger = await server.tenant("stranger");
  const unknown = await stranger.client
    .json("POST", `/admin/v1/fragments/${first.id}/pin`)
    .catch((error: unknown) => error);
  expect(unknown).toMatchObject({ status: 404 });
}, 60_000);
