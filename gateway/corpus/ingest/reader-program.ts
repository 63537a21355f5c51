/**
 * The program that reads documents, and the arguments to run it: confined to its own files where the system supports
 * that. A test document finds out once whether it does.
 */
import { dirname } from "node:path";
import { programPath } from "../../../places/places.ts";
import { answered, type ExtractJob } from "../../extract/protocol.ts";

const confining = programPath("confine");
const documentProgram = programPath("document");
/** The program's working folder, which holds no settings of anybody. */
export const programFolder = dirname(documentProgram);

const trialJob: ExtractJob = { kind: "html", maxTextChars: 64, maxPages: 1, maxUnpackedBytes: 64, maxParts: 1 };
const trialBytes = new TextEncoder().encode("<p>confined");
const trialMs = 60_000;

export class ReaderProgram {
  readonly #onUnconfined: () => void;
  readonly #program: string;
  #arguments: Promise<readonly string[]> | undefined;

  /**
   * @param onUnconfined called once if the program can open what the server's user can
   * @param program replaces the program, for tests
   */
  constructor(onUnconfined: () => void = () => undefined, program = documentProgram) {
    this.#onUnconfined = onUnconfined;
    this.#program = program;
  }

  /** The arguments for Bun that come before the job. */
  arguments(): Promise<readonly string[]> {
    this.#arguments ??= this.#find();
    return this.#arguments;
  }

  async #find(): Promise<readonly string[]> {
    if (await canConfine()) return [confining, this.#program];
    this.#onUnconfined();
    return [this.#program];
  }
}

async function canConfine(): Promise<boolean> {
  const child = Bun.spawn([process.execPath, confining, documentProgram, JSON.stringify(trialJob)], {
    cwd: programFolder,
    env: {},
    stdin: trialBytes,
    stdout: "pipe",
    stderr: "ignore",
    timeout: trialMs,
    killSignal: "SIGKILL",
  });
  const answer = await new Response(child.stdout).text();
  return answer === answered({ text: "confined", pages: [] });
}
