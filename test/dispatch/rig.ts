/** Registry, residency, supervisor and dispatcher wired as main.ts wires them, over any kind of link. */
import { Dispatcher, type DispatcherOptions } from "../../gateway/dispatch/dispatcher.ts";
import { KvHistory } from "../../gateway/dispatch/kv/history.ts";
import { MissReasons } from "../../gateway/dispatch/kv/miss-reasons.ts";
import { PendingBlocks } from "../../gateway/dispatch/kv/pending-blocks.ts";
import { Pins } from "../../gateway/dispatch/kv/pins.ts";
import { Residency } from "../../gateway/dispatch/kv/residency.ts";
import { UseCounts } from "../../gateway/dispatch/kv/use-counts.ts";
import type { DispatchRequest } from "../../gateway/dispatch/request/request.ts";
import type { OpenLink, WorkerCommand } from "../../gateway/dispatch/workers/link.ts";
import { Registry } from "../../gateway/dispatch/workers/registry.ts";
import { Supervisor } from "../../gateway/dispatch/workers/supervisor.ts";
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import type { GenerateParams, PlanRun, TokenPlan } from "../../worker/contract/messages.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { fakeCard } from "./fake-core.ts";
import { fakeLinks } from "./fake-link.ts";

export const salt = "c2FsdA==" as CacheSalt;
export const corpusSalt = "Y29ycHVz" as CacheSalt;

/** Chains that begin with these keys are a corpus's. */
const corpusRoots: ReadonlySet<string> = new Set([rootKey(fakeCard.digest, corpusSalt, "span")]);

export function makeRig(openLink: OpenLink, devices: readonly string[], options: Partial<DispatcherOptions> = {}) {
  const registry = new Registry();
  const pendingBlocks = new PendingBlocks((root) => (corpusRoots.has(root) ? "tenant_corpus" : undefined));
  const residency = new Residency((workerId, root) => pendingBlocks.ownerOf(workerId, root));
  const uses = new UseCounts(1_000);
  const log = () => undefined;
  const command = (): WorkerCommand => ({
    argv: [process.execPath, `${import.meta.dir}/fake-worker.ts`],
    env: { PATH: process.env.PATH ?? "" },
  });
  const supervisor = new Supervisor({
    devices,
    command,
    openLink,
    registry,
    log,
    backoffMinMs: 1,
    backoffMaxMs: 4,
    stableMs: 10_000,
  });
  const history = new KvHistory({ maxGone: 1_000, maxTexts: 1_000 });
  const dispatcher = new Dispatcher({
    registry,
    residency,
    pendingBlocks,
    uses,
    history,
    misses: new MissReasons({ history, residency, blockTokens: () => registry.card()?.blockTokens }),
    supervisor,
    log,
    maxAttempts: 3,
    maxDeaths: 20,
    maxRunningPerWorker: 64,
    maxWaiting: 256,
    maxWaitingTokens: 1_000_000,
    abortGraceMs: 50,
    ...options,
  });
  const pins = new Pins({ registry, residency, supervisor });
  return { registry, residency, pendingBlocks, uses, supervisor, dispatcher, pins };
}

/** A rig whose workers are in memory and ready; `process` is the first of them. */
export function readyRig(workerCount = 1, options: Partial<DispatcherOptions> = {}) {
  const { openLink, processes } = fakeLinks();
  const rig = makeRig(
    openLink,
    Array.from({ length: workerCount }, () => "cpu"),
    options,
  );
  rig.supervisor.start(rig.dispatcher);
  for (const process of processes) process.ready();
  const [process] = processes;
  if (process === undefined) throw new Error("a rig has one worker at least");
  return { ...rig, processes, process };
}

export function spanRun(name: string, tokenCount: number, spanSalt = salt): PlanRun {
  const tokenIds = Int32Array.from({ length: tokenCount }, (_, index) => name.charCodeAt(index % name.length));
  const root = rootKey(fakeCard.digest, spanSalt, "span");
  const blockKeys = runBlockKeys(root, tokenIds, fakeCard.blockTokens, true);
  return { kind: "span", tokenIds, position: 0, sees: [], blockKeys, rootKey: root, spanId: name };
}

/** Spans, then a main run with the given tokens. */
export function plan(tokens: readonly number[], spans: readonly PlanRun[] = []): TokenPlan {
  const root = rootKey(fakeCard.digest, salt, "main");
  const tokenIds = Int32Array.from(tokens);
  const blockKeys = runBlockKeys(root, tokenIds, fakeCard.blockTokens, false);
  return { runs: [...spans, { kind: "main", tokenIds, position: 0, sees: [], blockKeys, rootKey: root }] };
}

export const greedy = (maxTokens: number): GenerateParams => ({
  maxTokens,
  minTokens: 0,
  ignoreEos: false,
  stopTokenIds: [],
  sampling: greedySampling,
});

export function request(id: string, changes: Partial<DispatchRequest> = {}): DispatchRequest {
  return {
    requestId: id,
    tenantId: "tenant_a",
    plan: plan([7, 8, 9]),
    params: greedy(3),
    reuse: true,
    deadlineMs: 5_000,
    ...changes,
  };
}
