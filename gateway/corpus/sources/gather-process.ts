/** Runs the process that reads a source and plans, and ends it when it takes too long or is not needed any more. */
import { dirname, join } from "node:path";
import { programPath } from "../../../places/places.ts";
import { onAbort } from "../../base/hold.ts";
import { Pace } from "../../base/pace.ts";
import { linesOf } from "../../client/lines.ts";
import { type GatherJob, gatherMessage } from "../../sources/protocol.ts";
import type { FileWork, StoredFile, SyncPlan } from "../../sources/sync-plan.ts";

const gatherProgram = programPath("gather");
/** The process ends itself at the job's time; what it is doing then may take so much longer. */
const graceMs = 150_000;

/** A sentence for the owner of the source. */
export class SourceError extends Error {}

/** What has to be done so that the store holds what the source has. */
export interface SourcePlan {
  readonly plan: SyncPlan;
  readonly failed: Map<string, string>;
  readonly isWhole: boolean;
  readonly unchanged: number;
}

/**
 * @param stored the store's files, in pages
 * @throws SourceError when the source as a whole cannot be read; the signal's reason when it is aborted
 */
export async function planApart(
  job: GatherJob,
  stored: AsyncIterable<readonly StoredFile[]>,
  signal: AbortSignal,
): Promise<SourcePlan> {
  signal.throwIfAborted();
  const child = Bun.spawn([process.execPath, gatherProgram], {
    // No settings of anybody, and no credential but the job's.
    cwd: dirname(gatherProgram),
    env: {},
    ...{ stdin: "pipe", stdout: "pipe", stderr: "ignore" },
    ...{ timeout: job.maxMs + graceMs, killSignal: "SIGKILL" },
  });
  using _listener = onAbort(signal, () => child.kill("SIGKILL"));
  try {
    child.stdin.write(`${JSON.stringify(job)}\n`);
    for await (const page of stored) {
      child.stdin.write(page.map((file) => `${JSON.stringify(file)}\n`).join(""));
      await child.stdin.flush();
    }
    await child.stdin.end();
    const planned = await planOf(child.stdout, job.folder);
    if (planned !== undefined) return planned;
    const code = await child.exited;
    if (child.signalCode === "SIGKILL") throw new SourceError("reading it took too long, or too much memory");
    throw new Error(`the program that reads sources ended with ${code}`);
  } catch (error) {
    signal.throwIfAborted();
    throw error;
  } finally {
    child.kill("SIGKILL");
  }
}

/** undefined: the program ended before it had planned. */
async function planOf(lines: ReadableStream<Uint8Array>, folder: string): Promise<SourcePlan | undefined> {
  const failed = new Map<string, string>();
  const work: FileWork[] = [];
  const relabelled: SyncPlan["relabelled"][number][] = [];
  const gone: StoredFile[] = [];
  const pace = new Pace();
  for await (const line of linesOf(lines)) {
    const message = gatherMessage.parse(JSON.parse(line));
    if (message.is === "refused") throw new SourceError(message.reason);
    if (message.is === "failed") failed.set(message.path, message.reason);
    if (message.is === "relabelled") relabelled.push(message);
    if (message.is === "gone") gone.push(message.stored);
    if (message.is === "work") {
      const { file, present, older } = message;
      const bytesAt = file.bytesAt && join(folder, file.bytesAt);
      work.push({ file: { ...file, sha256: file.sha256, bytesAt }, present, older });
    }
    if (message.is === "planned") {
      const plan = { work, relabelled, gone, unchanged: [], others: [] };
      return { plan, failed, isWhole: message.isWhole, unchanged: message.unchanged };
    }
    await pace.breathe();
  }
  return undefined;
}
