/** Ingests without end and says what was acknowledged, one line each; crash.test.ts kills it at any moment. */
import { listCorpora } from "../../db/corpora.ts";
import { listTenants } from "../../db/tenants.ts";
import { crashText } from "./crash-text.ts";
import { createWorld } from "./world.ts";

const [dir = "", firstArgument = "0"] = process.argv.slice(2);
const world = createWorld(dir);
const say = (line: string) => void process.stdout.write(`${line}\n`);
const all = { limit: 100, order: "asc" } as const;
await world.corpus.start();
const tenant = listTenants(world.db, all).rows[0] ?? world.tenants.create("crash");
const store =
  listCorpora(world.db, tenant.id, all).rows[0] ?? world.corpus.corpora.create(tenant.id, { name: "", metadata: {} });
const uploaded: string[] = [];

for (let number = Number(firstArgument); ; number++) {
  const bytes = new TextEncoder().encode(crashText(number));
  const upload = { filename: `${number}.txt`, purpose: "assistants", mediaType: "text/plain", bytes };
  const file = await world.corpus.files.upload(tenant.id, upload);
  uploaded.push(file.id);
  say(`uploaded ${number} ${file.id}`);
  const chunking = { maxTokens: 16, overlapTokens: 0 };
  await world.corpus.corpusFiles.attach(store, [{ fileId: file.id, attributes: {}, chunking }], "file_id");
  say(`attached ${number} ${file.id}`);
  if (number % 7 === 6) {
    const doomed = uploaded.shift();
    if (doomed === undefined) continue;
    say(`deleting ${doomed}`);
    world.corpus.files.delete(tenant.id, doomed);
    say(`deleted ${doomed}`);
  }
  if (number % 3 === 2) await world.corpus.idle();
}
