/** What files a model has on the hub, and which of them a server needs. Everything that the hub says is checked here. */
import { z } from "zod";
import type { HubClient } from "./hub-client.ts";
import { commitPattern, HubError, type HubModel, hubModelText } from "./hub-model.ts";

export interface HubFile {
  /** From the repository's top on. */
  readonly path: string;
  readonly size: number;
  /** Its name in the cache, and its hash: of large files SHA-256, of others git's. */
  readonly blob: string;
  readonly hash: "sha256" | "git";
}

export interface Listing {
  readonly commit: string;
  readonly files: ReadonlyMap<string, HubFile>;
}

/** Bounds on what a hub may say; the largest models have 200 files and 2 TB. */
const limits = { answerBytes: 16 * 2 ** 20, files: 10_000, fileBytes: 2 ** 40, otherBytes: 256 * 2 ** 20 } as const;

const size = z.number().int().min(0).max(Number.MAX_SAFE_INTEGER);
const sibling = z.object({
  rfilename: z.string().max(4_096),
  size: size.nullish(),
  blobId: z.string().nullish(),
  lfs: z.object({ sha256: z.string(), size }).nullish(),
});
const schema = z.object({ sha: z.string().regex(commitPattern), siblings: z.array(sibling) });

/** @throws HubError naming the model and what is wrong */
export async function readListing(client: HubClient, model: HubModel): Promise<Listing> {
  const path = `/api/models/${model.id}/revision/${encodeURIComponent(model.revision)}?blobs=true`;
  const parsed = schema.safeParse(await client.retried(() => readJsonAnswer(client, path, model)));
  const wrong = (why: string) => new HubError(`${client.settings.endpoint} has no listing of ${model.id}: ${why}`);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw wrong(`"${issue?.path.join(".")}" ${issue?.message}`);
  }
  const { sha, siblings } = parsed.data;
  if (siblings.length > limits.files) throw wrong(`it has ${siblings.length} files, more than ${limits.files}`);
  return { commit: sha, files: new Map(siblings.flatMap((each) => fileOf(each) ?? [])) };
}

async function readJsonAnswer(client: HubClient, path: string, model: HubModel): Promise<unknown> {
  const answer = await client.get(path, model);
  const parts: Uint8Array[] = [];
  let byteCount = 0;
  for await (const piece of answer.pieces()) {
    byteCount += piece.length;
    if (byteCount > limits.answerBytes) throw new HubError(`${model.id}: the hub's listing is too long`);
    parts.push(piece);
  }
  try {
    return JSON.parse(Buffer.concat(parts).toString("utf8"));
  } catch {
    throw new HubError(`${client.settings.endpoint} is no hub: it answers without JSON (HF_ENDPOINT)`);
  }
}

function fileOf({ rfilename: path, size: given, blobId, lfs }: z.infer<typeof sibling>) {
  const file = lfs
    ? { size: lfs.size, blob: lfs.sha256, hash: "sha256" as const }
    : { size: given, blob: blobId, hash: "git" as const };
  const pattern = lfs ? /^[0-9a-f]{64}$/ : commitPattern;
  if (file.size == null || file.blob == null || !pattern.test(file.blob)) return undefined;
  return [[path, { path, size: file.size, blob: file.blob, hash: file.hash }]] as const;
}

const indexName = "model.safetensors.index.json";
const singleName = "model.safetensors";
/** What a server reads beside the weights. No other name is ever asked for, whatever the hub lists. */
const needed = ["config.json", "tokenizer.json"];
const wanted = [
  "generation_config.json",
  "tokenizer_config.json",
  "chat_template.jinja",
  "additional_chat_templates/tool_use.jinja",
];

/**
 * The files to load before the weights, among them the weights' index where there is one.
 * @throws HubError when the repository is of another format
 */
export function filesBesideWeights({ files }: Listing, model: HubModel): readonly HubFile[] {
  const refuse = (why: string) => new HubError(`${hubModelText(model)} cannot be served: ${why}`);
  if (!files.has(indexName) && !files.has(singleName)) throw refuse(otherFormat([...files.keys()]));
  const missing = needed.find((name) => !files.has(name));
  if (missing !== undefined) throw refuse(`it has no ${missing}`);
  const found = [...needed, ...wanted, indexName].flatMap((name) => files.get(name) ?? []);
  for (const file of found) assertSize(file, limits.otherBytes, model);
  return found;
}

function otherFormat(paths: readonly string[]): string {
  const has = (ending: string): boolean => paths.some((path) => path.endsWith(ending));
  const own = "take the repository that it was made from, with safetensors";
  if (has(".gguf")) return `its weights are GGUF files, which are not supported; ${own}`;
  if (has(".bin") || has(".pt") || has(".pth")) {
    return `its weights are PyTorch's pickles (*.bin), which can run code and are not read; take a revision or a repository with safetensors`;
  }
  if (has(".safetensors")) return `it has neither ${singleName} nor ${indexName}, but safetensors of other names`;
  return "it has no weights (*.safetensors)";
}

const shardName = /^[A-Za-z0-9][\w.-]*\.safetensors$/;

/**
 * The weights: what the index names, or the one file.
 * @param index the index's text; undefined: there is none
 * @throws HubError
 */
export function weightFiles({ files }: Listing, index: string | undefined, model: HubModel): readonly HubFile[] {
  const names = index === undefined ? [singleName] : shardsOf(index);
  const wrong = (why: string) => new HubError(`${hubModelText(model)}: ${indexName} ${why}`);
  if (names === undefined || names.length === 0) throw wrong('has no "weight_map" of tensors to files');
  if (names.length > maxShards) throw wrong(`names ${names.length} files, more than ${maxShards}`);
  return names.map((name) => {
    const file = shardName.test(name) ? files.get(name) : undefined;
    if (file === undefined) throw wrong(`names ${JSON.stringify(name)}, which is no file of the repository`);
    assertSize(file, limits.fileBytes, model);
    return file;
  });
}

/** As worker/model reads them. */
const maxShards = 1_024;

/** The files that an index names; undefined: it is no index. */
export function shardsOf(index: string): string[] | undefined {
  try {
    const { weight_map: map } = z.object({ weight_map: z.record(z.string(), z.string()) }).parse(JSON.parse(index));
    return [...new Set(Object.values(map))];
  } catch {
    return undefined;
  }
}

function assertSize({ path, size: bytes }: HubFile, most: number, model: HubModel): void {
  if (bytes <= most) return;
  throw new HubError(`${hubModelText(model)}: ${path} has ${bytes} bytes, more than the ${most} that are taken`);
}
