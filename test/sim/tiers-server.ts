/** A simulated server: its gateway and workers, which end and start again, and what is wrong with the machine. */
import type { Database } from "bun:sqlite";
import { jest } from "bun:test";
import type { KvScopes } from "../../gateway/kv/scopes.ts";
import type { GatewayMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import type { Choices } from "./random.ts";
import { SimGateway, SimWorker } from "./tiers-processes.ts";
import type { VirtualDisk } from "./virtual-disk.ts";

const gib = 2 ** 30;

export interface ServerOptions {
  readonly client: Database;
  readonly scopes: KvScopes;
  readonly disk: VirtualDisk;
  readonly choices: Choices;
  readonly mostBytes: number | undefined;
  readonly mostOfTenant: number | undefined;
  readonly chainOf: (key: BlockKey) => readonly BlockKey[];
  readonly onSend: (message: GatewayMessage) => void;
  /** The gateway is about to take what a worker says. */
  readonly onHeard: (worker: SimWorker, message: WorkerMessage) => void;
}

export class SimServer {
  readonly workers: SimWorker[] = [];
  /** What was thrown where nothing may be. */
  readonly problems: unknown[] = [];
  isDbFull = false;
  freeBytes = 1_000 * gib;
  gateway: SimGateway;
  readonly #options: ServerOptions;
  #processes = 0;

  constructor(options: ServerOptions) {
    this.#options = options;
    this.gateway = this.#openGateway();
  }

  start(): void {
    this.#safely(() => this.gateway.kv.start());
    const count = this.#options.choices.int(1, 2);
    for (let number = 0; number < count; number++) this.workers.push(this.#openWorker(`worker-${number}`));
  }

  pickWorker(isReady = false): SimWorker | undefined {
    const workers = this.workers.filter((worker) => worker.isReady || !isReady);
    return workers.length === 0 ? undefined : this.#options.choices.pick(workers);
  }

  /** The gateway takes a worker's next message. */
  hear(worker: SimWorker): void {
    const message = worker.outbox.shift();
    if (message === undefined) return;
    if (message !== "ready") this.#options.onHeard(worker, message);
    this.#safely(() => {
      if (message !== "ready") return this.gateway.kv.onMessage(message);
      worker.isReady = true;
      // Its failure is a line in the log.
      this.gateway.kv.onReady(worker.id).catch(() => undefined);
    });
  }

  /** A worker is killed, and another takes its place. */
  killWorker(worker: SimWorker): void {
    this.#end(worker);
    // Some of what it had said is heard still.
    for (let left = this.#options.choices.int(0, worker.outbox.length); left > 0; left--) this.hear(worker);
    worker.isReady = false;
    this.#safely(() => this.gateway.kv.onLost(worker.id));
    this.workers[this.workers.indexOf(worker)] = this.#openWorker(worker.id);
  }

  /** All processes are killed, and the server starts anew. */
  restart(isPowerCut: boolean): void {
    const { disk } = this.#options;
    for (const worker of this.workers.splice(0)) this.#end(worker);
    this.gateway.end();
    disk.end(this.gateway.processId);
    jest.clearAllTimers();
    if (isPowerCut) disk.losePower();
    this.gateway = this.#openGateway();
    this.start();
  }

  /** What goes wrong from now on, or does not any more. */
  changeFaults(): void {
    const { choices, disk } = this.#options;
    const { faults } = disk;
    switch (choices.int(0, 6)) {
      case 0:
      case 1:
        faults.errors = choices.pick([0, 0, 0.02, 0.3]);
        return;
      case 2:
        faults.short = choices.pick([0, 0.3, 1]);
        return;
      case 3:
        faults.isReadOnly = choices.chance(0.4);
        return;
      case 4:
        faults.capacityBytes = choices.pick([100_000, Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY]);
        return;
      case 5:
        this.freeBytes = choices.pick([1, 1_000, 1_000]) * gib;
        return;
      case 6:
        this.isDbFull = choices.chance(0.4);
        return;
    }
  }

  /** Nothing goes wrong any more, but for a disk that lies. */
  mend(): void {
    const { faults } = this.#options.disk;
    Object.assign(faults, { errors: 0, short: 0, isReadOnly: false, capacityBytes: Number.POSITIVE_INFINITY });
    this.isDbFull = false;
    this.freeBytes = 1_000 * gib;
  }

  #end(worker: SimWorker): void {
    worker.end();
    this.#options.disk.end(worker.processId);
  }

  #openGateway(): SimGateway {
    this.#processes += 1;
    return new SimGateway({
      ...this.#options,
      processId: this.#processes,
      isDbFull: () => this.isDbFull,
      freeBytes: () => this.freeBytes,
      workers: () => this.workers,
    });
  }

  #openWorker(id: string): SimWorker {
    this.#processes += 1;
    return new SimWorker({ ...this.#options, id, processId: this.#processes });
  }

  #safely(work: () => void): void {
    try {
      work();
    } catch (error) {
      this.problems.push(error);
    }
  }
}
