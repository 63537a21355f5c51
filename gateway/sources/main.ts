/**
 * Reads a web site or a bucket for the server, and plans what has to be done, in a process of its own: pages are parsed
 * and lists compared here, away from the server's event loop. It gets its job on standard input, S3 keys too, and no
 * environment.
 */
import { readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { gatherRemote } from "./gather.ts";
import type { GatherJob, GatherMessage } from "./protocol.ts";
import { allowing } from "./public-fetch.ts";
import { FetchError } from "./source-url.ts";
import { type LocalFile, labelOf, planSync, type StoredFile } from "./sync-plan.ts";

const [job = "", ...stored] = (await Bun.stdin.text()).trimEnd().split("\n");
const messages = await gather(
  JSON.parse(job) as GatherJob,
  stored.map((line) => JSON.parse(line) as StoredFile),
);
await Bun.write(Bun.stdout, messages.map((message) => `${JSON.stringify(message)}\n`).join(""));

async function gather(
  { label, url, maxPages, maxDepth, maxObjects, maxBytes, maxMs, s3, networks, uploads, folder }: GatherJob,
  stored: readonly StoredFile[],
): Promise<readonly GatherMessage[]> {
  const isAllowed = allowing(networks);
  try {
    const { files, failed, isWhole } = await gatherRemote(label, url, stored, {
      web: { maxPages, maxDepth, maxTotalBytes: maxBytes, maxMs, isAllowed },
      ...{ folder, s3, maxObjects, maxObjectBytes: maxBytes },
      readStored: (id) => readFile(join(uploads, id)),
      onProgress: () => undefined,
    });
    if (files.length === 0 && stored.some((file) => labelOf(file) === label)) {
      // An emptied bucket or sitemap is more often a mistake than meant.
      throw new FetchError("it has no file any more, so nothing is taken out");
    }
    const { work, relabelled, gone, unchanged } = planSync(files, stored, new Set([label]), false);
    return [
      ...relabelled.map((one) => ({ is: "relabelled" as const, ...one })),
      ...work.map(({ file, present, older }) => ({
        is: "work" as const,
        file: named(file),
        present,
        older: [...older],
      })),
      ...(isWhole ? gone : []).map((one) => ({ is: "gone" as const, stored: one })),
      ...[...failed].map(([path, reason]) => ({ is: "failed" as const, path, reason })),
      { is: "planned", isWhole, unchanged: unchanged.length },
    ];
  } catch (error) {
    if (!(error instanceof FetchError)) throw error;
    return [{ is: "refused", reason: error.message }];
  }
}

/** Its bytes by their name in the job's folder. */
function named(file: LocalFile): LocalFile {
  return { ...file, bytesAt: file.bytesAt && basename(file.bytesAt) };
}
