/**
 * A seeded life of a server that keeps KV in files: texts are prepared, asked about, deleted; workers, the server and
 * the power fail; the disk does what disks do. The product's own code runs over a virtual disk and a virtual clock.
 * Answers are compared with those of a world without files; what was deleted must not open; what has a row must be
 * there, whole; nothing may wait for ever.
 */
import { expect, jest } from "bun:test";
import type { Db } from "../../db/open.ts";
import type { KvScopes } from "../../gateway/kv/scopes.ts";
import type { GatewayMessage, SubmitMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import { countUp, submitPlan } from "../engine/plans.ts";
import { Choices } from "./random.ts";
import { type Asked, checkAnswer, TiersAudit } from "./tiers-audit.ts";
import { type Deletion, type DeletionKind, deletionOf } from "./tiers-deletion.ts";
import type { SimWorker } from "./tiers-processes.ts";
import { SimServer } from "./tiers-server.ts";
import { type Fragment, factsOf, Texts } from "./tiers-texts.ts";
import { VirtualDisk } from "./virtual-disk.ts";

/** Pending work is done after so many rounds, or something waits for ever. */
const mostRounds = 20_000;

/** What became of a request. */
interface Track {
  readonly message: SubmitMessage;
  readonly fragments: readonly Fragment[];
  readonly workerId: string;
  readonly sentAt: number;
  readonly tokenIds: number[];
  end: WorkerMessage | undefined;
  /** Its worker ended before it did. */
  isLost: boolean;
}

export interface TiersCounts {
  answers: number;
  kept: number;
  loaded: number;
  loadFailed: number;
  keepFailed: number;
  /** Of texts that were in files at the end, and what of them questions found. */
  keptTokens: number;
  foundTokens: number;
  gone: number;
  powerCuts: number;
  kills: number;
  checkedFiles: number;
}

type Action = readonly [weight: number, act: () => void | Promise<void>];

/** Everything that waits for its turn on the event loop has one. */
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

export class TiersWorld {
  readonly counts: TiersCounts = {
    ...{ answers: 0, kept: 0, loaded: 0, loadFailed: 0, keepFailed: 0, keptTokens: 0, foundTokens: 0 },
    ...{ gone: 0, powerCuts: 0, kills: 0, checkedFiles: 0 },
  };
  readonly #choices: Choices;
  readonly #scopes: KvScopes;
  readonly disk: VirtualDisk;
  readonly audit: TiersAudit;
  readonly #texts: Texts;
  readonly #tracks = new Map<string, Track>();
  readonly #asked = new Map<string, Asked>();
  /** Ids of objects whose text was deleted: nothing may open them from then on. */
  readonly #gone = new Set<string>();
  /** Deletions that a full database refused, or a crash came before: they are done again, as sweeps do. */
  readonly #owed: Deletion[] = [];
  /** Ids of objects whose keys a full database could not destroy yet. */
  readonly #late = new Set<string>();
  readonly #keeping = new Set<Promise<unknown>>();
  readonly #bounds: { readonly mostBytes: number | undefined; readonly mostOfTenant: number | undefined };
  readonly #longest: number;
  readonly #liesFrom: number;
  readonly #server: SimServer;
  #actions = 0;

  constructor(seed: number, db: Db, scopes: KvScopes) {
    this.#choices = new Choices(seed);
    this.#scopes = scopes;
    this.disk = new VirtualDisk(this.#choices);
    this.#texts = new Texts(db, this.#choices);
    this.audit = new TiersAudit(db.client, scopes, this.disk);
    this.#bounds = {
      mostBytes: this.#choices.pick([undefined, undefined, 64 * 1024, 160 * 1024]),
      mostOfTenant: this.#choices.pick([undefined, undefined, 80 * 1024]),
    };
    this.#longest = this.#choices.pick([12, 30, 30, 150]);
    // A disk begins to lie some day: what it had before is safe.
    this.#liesFrom = this.#choices.chance(0.1) ? this.#choices.int(0, 120) : Number.POSITIVE_INFINITY;
    this.#server = new SimServer({
      ...{ client: db.client, scopes, disk: this.disk, choices: this.#choices, ...this.#bounds },
      chainOf: (key) => this.#texts.chainOf(key),
      onSend: (message) => this.#onSend(message),
      onHeard: (worker, message) => this.#note(worker, message),
    });
  }

  async run(actionCount: number): Promise<TiersCounts> {
    const actions = this.#drawActions();
    this.#server.start();
    for (; this.#actions < actionCount; this.#actions++) {
      this.disk.faults.lies ||= this.#actions >= this.#liesFrom;
      await pickAction(actions, this.#choices)();
      await turn();
      await this.#check();
    }
    await this.#finish();
    return this.counts;
  }

  /** Each world has its own mixture, so that some have much of one thing. */
  #drawActions(): readonly Action[] {
    const much = (weight: number): number => weight * this.#choices.pick([0, 0.5, 1, 3]);
    const some = (weight: number, act: Action[1]): Action => [much(weight), act];
    return [
      [30, () => this.#workDisk(this.#choices.int(1, 12))],
      [25, () => this.#server.pickWorker()?.step()],
      [12, () => this.#talk((worker) => worker.receive())],
      [12, () => this.#talk((worker) => this.#server.hear(worker))],
      [6, () => void jest.advanceTimersByTime(this.#choices.int(1, 30))],
      some(1, () => void jest.advanceTimersByTime(this.#choices.pick([1_100, 31_000, 61_000]))),
      [6, () => this.#ask()],
      [12, () => this.#prepare()],
      some(1, () => this.#delete("fragment")),
      some(0.7, () => this.#delete("evict")),
      some(0.5, () => this.#delete("rotate")),
      some(0.4, () => this.#delete("corpus")),
      some(0.2, () => this.#delete("tenant")),
      some(0.3, () => this.#delete("scope")),
      some(0.4, () => this.#killWorker()),
      some(0.2, () => this.#restart("kill")),
      some(0.4, () => this.#restart("power")),
      some(0.1, () => this.#stop()),
      some(2, () => this.disk.damage()),
      some(3, () => this.#server.changeFaults()),
    ];
  }

  async #workDisk(count: number): Promise<void> {
    for (let left = count; left > 0 && this.disk.waiting > 0; left--) {
      this.disk.next();
      await turn();
    }
  }

  /** Some messages are taken, in their order. */
  #talk(take: (worker: SimWorker) => void): void {
    const worker = this.#server.pickWorker();
    for (let left = this.#choices.int(1, 5); left > 0 && worker !== undefined; left--) take(worker);
  }

  /** A question over some texts of one tenant. */
  #ask(): void {
    const [first, ...others] = this.#pickFragments(this.#choices.int(1, 3));
    if (first === undefined) return;
    const fragments = [first, ...others.filter(({ corpus }) => corpus.tenantId === first.corpus.tenantId)];
    const question = countUp(this.#choices.int(0, 90), this.#choices.int(1, 6));
    this.#submit(fragments, question, this.#choices.int(1, 3));
  }

  #prepare(): void {
    const isNew = this.#texts.live.length < 3 || this.#choices.chance(0.4);
    if (isNew) this.#texts.add(this.#longest);
    const live = this.#texts.live;
    const newest = live.at(-1);
    if (newest === undefined) return;
    this.#submit(isNew ? [newest] : this.#pickFragments(this.#choices.int(1, 2)), undefined, 0);
  }

  #pickFragments(count: number): readonly Fragment[] {
    const { live } = this.#texts;
    if (live.length === 0) return [];
    return [...new Set(Array.from({ length: count }, () => this.#choices.pick(live)))];
  }

  #submit(fragments: readonly Fragment[], question: Int32Array | undefined, maxTokens: number): string | undefined {
    const worker = this.#server.pickWorker(true);
    if (worker === undefined) return undefined;
    const requestId = `r${this.#tracks.size}`;
    const spans = fragments.map(({ tokenIds }) => tokenIds);
    const parts = { spans, ...(question && { question }) };
    const plain = submitPlan(requestId, parts, { params: { maxTokens, ignoreEos: true } });
    // Each span has its own corpus's salt.
    const runs = plain.plan.runs.map((run, index) => {
      const fragment = fragments[index];
      return fragment === undefined ? run : { ...run, rootKey: fragment.rootKey, blockKeys: fragment.blockKeys };
    });
    const message: SubmitMessage = { ...plain, plan: { runs } };
    const track = { message, fragments, workerId: worker.id, sentAt: this.#actions, tokenIds: [], isLost: false };
    this.#tracks.set(requestId, { ...track, end: undefined });
    this.#server.gateway.kv.account.noteUse(message.plan);
    this.#server.gateway.send(worker.id, message);
    return requestId;
  }

  #note(worker: SimWorker, message: WorkerMessage): void {
    if (message.type === "kept") this.counts.kept += 1;
    if (message.type === "loaded") this.counts.loaded += message.objectIds.length;
    if (message.type === "load failed") {
      this.counts.loadFailed += 1;
      this.audit.checkFailure(message.objectId, message.reason);
    }
    if (message.type === "keep failed") this.counts.keepFailed += 1;
    if (!("requestId" in message)) return;
    const track = this.#tracks.get(message.requestId);
    if (track === undefined || track.end !== undefined) throw new Error(`unexpected ${message.type}`);
    if (message.type === "tokens") return void track.tokenIds.push(...message.tokenIds);
    track.end = message;
    this.counts.answers += 1;
    checkAnswer(track.message, track.tokenIds, message);
    if (message.type !== "finished" || message.reason !== "prepared") return;
    for (const fragment of track.fragments)
      if (!fragment.isGone && fragment.evictedAt < track.sentAt) this.#keep(worker, fragment);
  }

  #keep({ id }: SimWorker, fragment: Fragment): void {
    this.#scopes.note(fragment.salt, factsOf(fragment));
    const { rootKey, blockKeys, tokenIds } = fragment;
    const promise = this.#server.gateway.kv.keep(id, { rootKey, blockKeys, tokenIds }, fragment.salt);
    this.#keeping.add(promise);
    promise.then(
      () => this.#keeping.delete(promise),
      (error: unknown) => this.#server.problems.push(error),
    );
  }

  #onSend(message: GatewayMessage): void {
    if (message.type !== "keep") return;
    const { object } = message;
    const fragment = this.#texts.fragments.find(({ blockKeys }) => blockKeys.includes(object.lastKey));
    if (fragment !== undefined) this.#asked.set(object.id, { object, fragment });
  }

  #delete(what: DeletionKind): void {
    const { live } = this.#texts;
    if (live.length === 0) return;
    const fragment = this.#choices.pick(live);
    const deletion = deletionOf(this.#texts, what, fragment, this.#actions);
    // Between the change of the texts and what follows the server may be killed: its next start makes up for it.
    const isFound = what === "rotate" || what === "corpus" || what === "tenant";
    if ((isFound || what === "fragment") && this.#choices.chance(0.1)) {
      if (!isFound) this.#owed.push(deletion);
      this.#restart("kill");
      if (isFound) this.#goneBy(deletion);
    } else this.#carryOut(deletion);
  }

  /** As the product does it: files' keys first, then what the workers hold. */
  #carryOut(deletion: Deletion): void {
    try {
      deletion.act(this.#server.gateway.kv);
    } catch (error) {
      if (!this.#server.isDbFull) this.#server.problems.push(error);
      this.#owed.push(deletion);
      return;
    }
    this.#goneBy(deletion);
    // A sweep whose work a crash cut off does it again.
    if (this.#server.isDbFull) this.#owed.push(deletion);
    for (const { id } of this.#server.workers)
      this.#server.gateway.send(id, { type: "evict", blockKeys: deletion.keys });
  }

  /** What had these texts is gone from now on; with a full database, which scopes wait for, by the end. */
  #goneBy({ fragments, isByScope }: Deletion): void {
    const late = isByScope && this.#server.isDbFull ? this.audit.openableIds() : new Set<string>();
    for (const [id, { fragment }] of this.#asked) {
      if (!fragments.includes(fragment) || this.#gone.has(id)) continue;
      this.counts.gone += 1;
      if (late.has(id)) this.#late.add(id);
      else this.#gone.add(id);
    }
  }

  #payOwed(): void {
    if (this.#server.isDbFull) return;
    for (const deletion of this.#owed.splice(0)) this.#carryOut(deletion);
  }

  #killWorker(): void {
    const worker = this.#server.pickWorker();
    if (worker === undefined) return;
    this.counts.kills += 1;
    this.#server.killWorker(worker);
    this.#lose(({ workerId }) => workerId === worker.id);
  }

  /** Ends all processes and starts the server anew. */
  #restart(how: "kill" | "power"): void {
    this.counts[how === "power" ? "powerCuts" : "kills"] += 1;
    this.#server.restart(how === "power");
    this.#lose(() => true);
    this.#keeping.clear();
    this.#payOwed();
  }

  /** Requests that end with their worker. */
  #lose(isMeant: (track: Track) => boolean): void {
    for (const track of this.#tracks.values()) track.isLost ||= track.end === undefined && isMeant(track);
  }

  async #stop(): Promise<void> {
    let isStopped = false;
    const stopping = this.#server.gateway.kv.stop().then(() => {
      isStopped = true;
    });
    stopping.catch((error: unknown) => this.#server.problems.push(error));
    await this.#settle(() => isStopped);
    this.#restart("kill");
  }

  /** What holds after every action. */
  async #check(): Promise<void> {
    if (this.#server.problems.length > 0) throw this.#server.problems[0];
    if (this.disk.misuses.length > 0) throw new Error(this.disk.misuses[0]);
    for (const { failure, engine, evicted } of this.#server.workers) {
      if (failure !== undefined) throw failure;
      for (const key of evicted) if (engine.cache.has(key)) throw new Error(`${key} was evicted and is found again`);
    }
    const { mostBytes = Number.POSITIVE_INFINITY, mostOfTenant = Number.POSITIVE_INFINITY } = this.#bounds;
    await this.audit.check(this.#server.gateway.kv.usage()[0], { mostBytes, mostOfTenant }, this.#gone, this.#asked);
  }

  /** Lets everything go on until nothing waits any more. */
  async #settle(isDone: () => boolean): Promise<void> {
    for (let round = 0; !isDone(); round++) {
      if (round > mostRounds) throw new Error("something waits for ever");
      while (this.disk.waiting > 0) {
        this.disk.next();
        await turn();
      }
      for (const worker of this.#server.workers) {
        while (worker.inbox.length > 0) worker.receive();
        while (worker.outbox.length > 0) this.#server.hear(worker);
        worker.step();
      }
      jest.advanceTimersByTime(20);
      await turn();
      await this.#check();
    }
  }

  #isQuiet(): boolean {
    const isIdle = this.#server.workers.every((worker) => worker.isQuiet);
    return isIdle && this.disk.waiting === 0 && this.#keeping.size === 0;
  }

  async #finish(): Promise<void> {
    this.#server.mend();
    this.#payOwed();
    await this.#settle(() => this.#isQuiet());
    // What a full database had refused is tried again after a second.
    jest.advanceTimersByTime(1_100);
    await this.#settle(() => this.#isQuiet());
    if (this.disk.faults.lies) {
      this.#restart("power");
      await this.#settle(() => this.#isQuiet());
    }
    for (const id of this.#late) this.#gone.add(id);
    await this.#check();
    for (const { end, isLost, message } of this.#tracks.values()) {
      if (end === undefined && !isLost) throw new Error(`${message.requestId} has no end`);
    }
    await this.#settle(() => this.#isQuiet() && this.disk.openHandles === 0);
    if (this.#server.gateway.kv.usage().length > 0) this.audit.checkNothingLeft();
    await this.#stop();
    await this.#settle(() => this.#isQuiet());
    if (this.#server.gateway.kv.usage().length === 0) return expect(this.disk.faults.lies).toBe(true);
    this.audit.checkFolder();
    this.counts.checkedFiles += await this.audit.checkFiles(this.#asked);
    await this.audit.checkGone(this.#gone, this.#asked);
    await this.#findKept();
  }

  /** What is in files is found by whoever asks for it now. */
  async #findKept(): Promise<void> {
    const kept = this.#texts.live.filter((fragment) => this.audit.isKept(fragment));
    for (const fragment of kept) {
      const requestId = this.#submit([fragment], countUp(7, 2), 1);
      await this.#settle(() => this.#isQuiet());
      const end = this.#tracks.get(requestId ?? "")?.end;
      if (end?.type !== "finished") throw new Error("a question over a kept text has no answer");
      if (!this.audit.isSound(fragment)) continue;
      this.counts.keptTokens += fragment.tokenIds.length;
      this.counts.foundTokens += Math.min(end.usage.cachedTokens, fragment.tokenIds.length);
    }
  }
}

function pickAction(actions: readonly Action[], choices: Choices): Action[1] {
  let left = choices.next() * actions.reduce((sum, [weight]) => sum + weight, 0);
  for (const [weight, act] of actions) {
    left -= weight;
    if (left < 0) return act;
  }
  throw new Error("there is nothing to do");
}
