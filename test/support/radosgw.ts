/** A real S3 server for long tests: Ceph's, as test/support/radosgw.sh starts it. */
import { join } from "node:path";
import { S3Bucket } from "../../gateway/sources/s3.ts";

const script = join(import.meta.dir, "radosgw.sh");

export interface Radosgw extends AsyncDisposable {
  readonly endpoint: string;
  readonly access: { readonly endpoint: string; readonly accessKeyId: string; readonly secretAccessKey: string };
  /** The names of all objects of s3://kv-files. */
  readonly list: () => Promise<readonly string[]>;
  readonly read: (name: string) => Promise<Uint8Array>;
}

/** Starts it, with an empty bucket `kv-files`. By default processes side by side take other ports, 100 each. */
export async function startRadosgw(port = 18_900 + (process.pid % 100) * 100): Promise<Radosgw> {
  const child = Bun.spawn(["sh", script, `${port}`], { stdin: "pipe", stdout: "pipe", stderr: "inherit" });
  let said = "";
  for await (const piece of child.stdout) {
    said += new TextDecoder().decode(piece);
    if (said.includes("ready")) break;
  }
  if (!said.includes("ready")) throw new Error("radosgw did not start");
  const endpoint = `http://127.0.0.1:${port}`;
  const access = { endpoint, accessKeyId: "reader", secretAccessKey: "secret" };
  const bucket = new S3Bucket({ bucket: "kv-files" }, access);
  const send = async (method: string, path: string): Promise<Response> => {
    const { url, headers } = await bucket.sign(method, path);
    const answer = await fetch(url, { method, headers });
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
    return answer;
  };
  await send("PUT", "");
  const list = async (): Promise<readonly string[]> => {
    const names: string[] = [];
    for (let token: string | undefined; ; ) {
      const page = bucket.readList(await (await send("GET", bucket.listPath("", token))).bytes());
      names.push(...page.objects.map(({ key }) => key));
      if (page.next === undefined) return names;
      token = page.next;
    }
  };
  const read = async (name: string): Promise<Uint8Array> => (await send("GET", `/${name}`)).bytes();
  const stop = async (): Promise<void> => {
    await child.stdin.end();
    await child.exited;
  };
  return { endpoint, access, list, read, [Symbol.asyncDispose]: stop };
}
