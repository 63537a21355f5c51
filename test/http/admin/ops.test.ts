import { describe, expect, test } from "bun:test";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { fakeCard, fakeStats } from "../../dispatch/fake-core.ts";
import { chatRig, post, question } from "../chat-rig.ts";

describe("operators' routes", () => {
  const get = (rig: ReturnType<typeof chatRig>, path: string, key = "key-platform") =>
    rig.app.request(path, { headers: { authorization: `Bearer ${key}` } });

  test("ready follows the workers and the shutdown, health does not", async () => {
    const rig = chatRig({ ready: false });
    expect((await rig.app.request("/ready")).status).toBe(503);
    rig.processes[0]?.ready();
    expect((await rig.app.request("/ready")).status).toBe(200);
    rig.state.warming = true;
    expect((await rig.app.request("/ready")).status).toBe(503);
    rig.state.warming = false;
    rig.state.draining = true;
    expect(await (await rig.app.request("/ready")).json()).toMatchObject({ status: "draining" });
    expect((await rig.app.request("/health")).status).toBe(200);
  });

  test("metrics count tokens and answers, and hold no tenant's text", async () => {
    const rig = chatRig();
    await post(rig.app, { ...question, user: "canary-user", documents: [{ id: "canary-id", text: "canary text" }] });
    await post(rig.app, { ...question, model: 'canary"model' });
    const text = await (await get(rig, "/metrics")).text();
    const model = 'model_name="fake-model"';
    expect(text).toContain(`vllm:generation_tokens_total{${model},worker="worker-0"} 4\n`);
    expect(text).toContain('route="/v1/chat/completions",status="404"} 1\n');
    for (const name of ["time_to_first_token", "e2e_request_latency", "request_decode_time"]) {
      expect(text).toContain(`vllm:${name}_seconds_bucket{${model},le="+Inf"} 1\n`);
    }
    expect(text).toContain(`vllm:request_time_per_output_token_seconds_count{${model}} 1\n`);
    expect(text).toContain(`vllm:request_generation_tokens_bucket{${model},le="2"} 0\n`);
    expect(text).toContain(`vllm:request_generation_tokens_bucket{${model},le="5"} 1\n`);
    expect(text).toContain(`vllm:request_generation_tokens_sum{${model}} 4\n`);
    const pool = 'worker="worker-0",block_size="\\d+",num_gpu_blocks="\\d+"';
    expect(text).toMatch(new RegExp(`^vllm:cache_config_info\\{${model},${pool}\\} 1$`, "m"));
    expect(text).toContain('spangate_worker_ready{worker="worker-0"} 1\n');
    const ofProcess = (name: string): number => Number(new RegExp(`^process_${name} (\\S+)$`, "m").exec(text)?.[1]);
    expect(ofProcess("resident_memory_bytes")).toBeGreaterThan(10_000_000);
    expect(ofProcess("cpu_seconds_total")).toBeGreaterThan(0);
    expect(Math.abs(ofProcess("start_time_seconds") * 1_000 - performance.timeOrigin)).toBeLessThan(60_000);
    expect(text).not.toContain("canary");
    expect((await get(rig, "/metrics", "key-a")).status).toBe(403);
  });

  test("KV outside the pools is counted under vLLM's and LMCache's names", async () => {
    const rig = chatRig();
    const text = async () => await (await get(rig, "/metrics")).text();
    expect(await text()).not.toMatch(/^(lmcache|spangate_kv_loads|vllm:external|vllm:kv_offload)/m);
    const loads = { loaded: 3, late: 1, failed: 0, dropped: 2 };
    const moved = { readBytes: 4_096, readMs: 1_500, writtenBytes: 8_192, writeMs: 250 };
    const tiers = [{ tier: "disk", ...moved, loads } as const];
    rig.registry.setStats("worker-0", { ...fakeStats, lackedTokens: 700, broughtTokens: 512, tiers });
    rig.state.tiers.push({ tier: "disk", objects: 2, blocks: 9, bytes: 12_288, pinnedBytes: 0, quotaBytes: 2 ** 30 });
    const hostKv = { blockCount: 8, bytesPerBlock: 100 };
    rig.processes[0]?.handlers.onMessage({ type: "ready", card: { ...fakeCard, hostKv } });
    const keys = ["a", "b"] as BlockKey[];
    const stored = { sequence: 1, type: "stored", tier: "host", blockKeys: keys, previousKeys: keys } as const;
    rig.residency.apply("worker-0", [{ ...stored, tokenCounts: [16, 16] }]);
    const lines = new Set((await text()).split("\n"));
    const model = 'model_name="fake-model"';
    const worker = `${model},worker="worker-0"`;
    for (const line of [
      `vllm:external_prefix_cache_queries_total{${worker}} 700`,
      `vllm:external_prefix_cache_hits_total{${worker}} 512`,
      `vllm:kv_offload_total_bytes_total{${worker},transfer_type="device_to_disk"} 8192`,
      `vllm:kv_offload_total_bytes_total{${worker},transfer_type="disk_to_device"} 4096`,
      `vllm:kv_offload_total_time_total{${worker},transfer_type="disk_to_device"} 1.5`,
      `vllm:kv_offload_tiering_read_bytes_total{${worker},tier="disk"} 4096`,
      `vllm:kv_offload_tiering_read_time_total{${worker},tier="disk"} 1.5`,
      `vllm:kv_offload_tiering_write_bytes_total{${worker},tier="disk"} 8192`,
      `vllm:kv_offload_tiering_write_time_total{${worker},tier="disk"} 0.25`,
      `lmcache:local_storage_usage{${model}} 12288`,
      `lmcache:local_cache_usage{${worker}} 200`,
      'spangate_kv_loads_total{worker="worker-0",tier="disk",outcome="late"} 1',
    ]) {
      expect([line, lines.has(line)]).toEqual([line, true]);
    }
  });

  test("what waits for a worker is told as waiting, and who left before a token as no time to one", async () => {
    const rig = chatRig({ ticking: false, dispatch: { maxRunningPerWorker: 1 } });
    const leaver = new AbortController();
    const running = post(rig.app, question, { signal: leaver.signal });
    const waiting = post(rig.app, question);
    while (rig.dispatcher.stats().unplaced === 0) await Bun.sleep(1);
    expect(await (await get(rig, "/metrics")).text()).toContain(
      'vllm:num_requests_waiting{model_name="fake-model"} 1\n',
    );
    leaver.abort();
    await running;
    const text = await (await get(rig, "/metrics")).text();
    expect(text).toContain('vllm:request_success_total{model_name="fake-model",finished_reason="abort"} 1\n');
    expect(text).toContain('vllm:e2e_request_latency_seconds_count{model_name="fake-model"} 1\n');
    expect(text).not.toContain("time_to_first_token_seconds_count");
    while (rig.dispatcher.stats().running > 0) rig.processes[0]?.core.tick();
    await waiting;
  });

  test("workers and models are described", async () => {
    const rig = chatRig();
    expect(await (await get(rig, "/admin/v1/workers")).json()).toMatchObject({
      data: [{ id: "worker-0", state: "ready", pid: 1001 }],
    });
    expect(await (await get(rig, "/v1/models", "key-a")).json()).toMatchObject({
      data: [{ id: "fake-model", max_model_len: 2048 }],
    });
    expect((await get(rig, "/v1/models/fake-model", "key-a")).status).toBe(200);
    expect((await get(rig, "/v1/models/other", "key-a")).status).toBe(404);
  });
});
