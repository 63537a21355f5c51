/**
 * All benchmarks, by name. Each is loaded when it is wanted: some import what a machine that runs another has not got, as
 * the console's does, and a machine with GPUs and nothing else.
 */
import type { Bench } from "./bench.ts";

export const benches: Readonly<Record<string, () => Promise<Bench>>> = {
  rag: async () => (await import("./rag.ts")).ragBench,
  decode: async () => (await import("./decode.ts")).decodeBench,
  kernels: async () => (await import("./kernels.ts")).kernelsBench,
  overhead: async () => (await import("./overhead.ts")).overheadBench,
  llama: async () => (await import("./llama.ts")).llamaBench,
  memory: async () => (await import("./memory.ts")).memoryBench,
  masks: async () => (await import("./masks.ts")).masksBench,
  determinism: async () => (await import("./determinism.ts")).determinismBench,
  quality: async () => (await import("./quality.ts")).qualityBench,
  reading: async () => (await import("./reading.ts")).readingBench,
  lowering: async () => (await import("./lowering.ts")).loweringBench,
  nested: async () => (await import("./nested.ts")).nestedBench,
  bulk: async () => (await import("./bulk.ts")).bulkBench,
  needle: async () => (await import("./needle.ts")).needleBench,
  retrieval: async () => (await import("./retrieval.ts")).retrievalBench,
  delete: async () => (await import("./delete.ts")).deleteBench,
  pack: async () => (await import("./pack.ts")).packBench,
  pool: async () => (await import("./pool.ts")).poolBench,
  zipf: async () => (await import("./zipf.ts")).zipfBench,
  timing: async () => (await import("./timing.ts")).timingBench,
  "kill-worker": async () => (await import("./kill-worker.ts")).killWorkerBench,
  "kill-gateway": async () => (await import("./kill-gateway.ts")).killGatewayBench,
  restart: async () => (await import("./restart.ts")).restartBench,
  tiers: async () => (await import("./tiers.ts")).tiersBench,
  "kv-writes": async () => (await import("./kv-writes.ts")).kvWritesBench,
  streams: async () => (await import("./streams.ts")).streamsBench,
  traces: async () => (await import("./traces.ts")).tracesBench,
  console: async () => (await import("./console.ts")).consoleBench,
  "reuse-decay": async () => (await import("./reuse-decay.ts")).reuseDecayBench,
  "light-tenant": async () => (await import("./light-tenant.ts")).lightTenantBench,
  stalls: async () => (await import("./stalls.ts")).stallsBench,
  structured: async () => (await import("./structured.ts")).structuredBench,
  sparse: async () => (await import("./sparse.ts")).sparseBench,
};
