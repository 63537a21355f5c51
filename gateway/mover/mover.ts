/** The gateway's side of its mover: starts the process with the first job, and again with the next one after its end. */
import { dirname } from "node:path";
import { programPath } from "../../places/places.ts";
import {
  type JobMessage,
  type ListedPage,
  type MoverAnswer,
  MoverError,
  type MoverJob,
  type MoverSettings,
  type OpenMessage,
} from "./protocol.ts";

/** Does jobs. Rejects with MoverError. */
export interface MoverPort {
  do(job: MoverJob): Promise<ListedPage | undefined>;
  stop(): void;
}

interface Child {
  readonly pid: number;
  readonly send: (message: OpenMessage | JobMessage) => void;
  readonly kill: () => void;
}

export class Mover implements MoverPort {
  readonly #settings: MoverSettings;
  readonly #env: Readonly<Record<string, string>>;
  readonly #jobs = new Map<number, PromiseWithResolvers<ListedPage | undefined>>();
  #child: Child | undefined;
  #number = 0;
  #isStopped = false;

  /** @param env the process's whole environment: no setting and no credential of the gateway's */
  constructor(settings: MoverSettings, env: Readonly<Record<string, string>>) {
    this.#settings = settings;
    this.#env = env;
  }

  /** undefined: no process runs. */
  get pid(): number | undefined {
    return this.#child?.pid;
  }

  async do(job: MoverJob): Promise<ListedPage | undefined> {
    if (this.#isStopped) throw new MoverError("bucket", "the server stops");
    const end = Promise.withResolvers<ListedPage | undefined>();
    this.#number += 1;
    const number = this.#number;
    this.#jobs.set(number, end);
    try {
      this.#child ??= this.#spawn();
      this.#child.send({ number, job });
    } catch {
      this.#lost();
    }
    return await end.promise;
  }

  stop(): void {
    this.#isStopped = true;
    this.#child?.kill();
    this.#lost();
  }

  #spawn(): Child {
    const program = programPath("mover");
    const spawned = Bun.spawn([process.execPath, program], {
      ...{ cwd: dirname(program), env: this.#env, stdio: ["ignore", 2, 2], serialization: "advanced" },
      ipc: (message: MoverAnswer) => this.#onAnswer(message),
      onExit: () => {
        if (this.#child === child) this.#lost();
      },
    });
    const child: Child = {
      pid: spawned.pid,
      send: (message) => spawned.send(message),
      kill: () => spawned.kill("SIGKILL"),
    };
    child.send({ settings: this.#settings });
    return child;
  }

  #onAnswer(answer: MoverAnswer): void {
    const end = this.#jobs.get(answer.number);
    this.#jobs.delete(answer.number);
    if (answer.is === "done") end?.resolve(answer.page);
    else end?.reject(new MoverError(answer.failure, answer.reason));
  }

  #lost(): void {
    this.#child = undefined;
    const jobs = [...this.#jobs.values()];
    this.#jobs.clear();
    for (const { reject } of jobs) reject(new MoverError("bucket", "the process that moves KV has ended"));
  }
}
