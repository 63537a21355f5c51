/** The gateway's side of KV files with a bucket in memory. */
import { systemFolderFiles } from "../../gateway/kv/folder.ts";
import { MoverError } from "../../gateway/mover/protocol.ts";
import { until } from "../support/until.ts";
import { FakeMover } from "./fake-mover.ts";
import { card, KvRig, saltA } from "./rig.ts";

export const away = new MoverError("bucket", "the S3 server answered 403");

export class BucketRig extends KvRig {
  readonly mover = new FakeMover(this.folder);
  readonly serverIds: string[] = [];
  readonly bucketQuotas = new Map<string, number>();

  async open({
    address = "s3://b/kv",
    mostBytes = 2 ** 40,
    diskBytes = 2 ** 40,
    files = systemFolderFiles,
    model = card,
  } = {}): Promise<void> {
    const openMover = (serverId: string) => {
      this.serverIds.push(serverId);
      return this.mover;
    };
    await this.start({
      mostBytes: diskBytes,
      files,
      card: () => model,
      bucket: { address, mostBytes, openMover, quotaBytesOf: (id) => this.bucketQuotas.get(id) },
    });
  }

  /** Where each object is, in the order in which they were made. */
  get places(): string[] {
    return this.db.client
      .query<{ d: number; b: number }, []>("select on_disk as d, in_bucket as b from kv_objects order by seq")
      .all()
      .map(({ d, b }) => `${d}${b}`);
  }

  get ids(): string[] {
    return this.db.client
      .query<{ id: string }, []>("select id from kv_objects order by seq")
      .all()
      .map(({ id }) => id);
  }

  get removals(): number {
    return this.db.client.query<{ n: number }, []>("select count(*) as n from kv_bucket_removals").get()?.n ?? -1;
  }

  use(tier: string) {
    return this.kv.usage().find((one) => one.tier === tier);
  }

  async uploaded(count: number): Promise<void> {
    await until(() => this.places.filter((place) => place.endsWith("2")).length === count, `${count} are uploaded`);
  }

  /** A worker asks for an object. @returns where it is told that it is */
  async ask(objectId: string): Promise<string> {
    const before = this.sent.length;
    const answer = () =>
      this.sent
        .slice(before)
        .find((one) => (one.type === "moved" || one.type === "forget") && one.objectIds.includes(objectId));
    this.kv.onMessage({ type: "fetch", objectId });
    await until(() => answer() !== undefined, "the worker is answered");
    const message = answer();
    return message?.type === "moved" ? message.tier : "forgotten";
  }
}

/** Three objects of 20 tokens in folder and bucket, used in their order. */
export async function three(rig: BucketRig): Promise<string[]> {
  await rig.open();
  for (const from of [1, 30, 60]) await rig.keep(saltA, from);
  rig.db.client.run("update kv_objects set used_at = seq");
  await rig.uploaded(3);
  return rig.ids;
}
