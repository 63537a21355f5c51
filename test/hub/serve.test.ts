/** From a model's name to a server that answers with it, as a stranger types it. */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { readDevAccess } from "../../gateway/settings/dev-access.ts";
import { buildCpuKernels } from "../../kernels/build.ts";
import { demoModelFolder } from "../../places/places.ts";
import { devSign, runSpangate, serveSpangate, startSpangate } from "../support/command-line.ts";
import { modelId, openHub, type StubHub } from "../support/hub.ts";
import { oneLayerFolder } from "../support/one-layer.ts";
import { until } from "../support/until.ts";
import { newFolder, single } from "./rig.ts";

let hub: StubHub;
const home = newFolder();
const cwd = newFolder();
const model = Object.fromEntries(
  readdirSync(oneLayerFolder()).map((name) => [name, readFileSync(join(oneLayerFolder(), name))]),
);
beforeAll(async () => {
  hub = await openHub(model);
  // So that no server is waited for that compiles them first.
  await buildCpuKernels();
}, 300_000);
afterAll(() => hub.stop());
const shellWith = (env: Record<string, string> = {}) => ({
  cwd,
  env: {
    ...{ PATH: process.env.PATH, HOME: home, XDG_CACHE_HOME: process.env.XDG_CACHE_HOME },
    ...{ HF_ENDPOINT: hub.endpoint, HF_HOME: join(home, "hf"), SPANGATE_LOG: "warn", HF_TOKEN: "hf_secret", ...env },
  },
});

test("a pull that Ctrl-C ends goes on; serve then takes the model from the cache and is called by its name", async () => {
  const stalls = hub.tell;
  hub.tell = (path) => (path === "model.safetensors" ? { waitAfter: 1_000_000 } : undefined);
  const first = startSpangate(["pull", modelId], shellWith());
  const partial = () => readdirSync(home, { recursive: true }).some((name) => String(name).endsWith(".incomplete"));
  const bytesBegun = () => hub.asked.some(({ at }) => at === "storage");
  await until(() => bytesBegun() && partial(), "a part is there");
  await Bun.sleep(100);
  first.kill("SIGINT");
  expect(await first.exited).toBe(130);
  expect(await first.stderr.text()).toContain("stopped; the same command goes on where it was");
  hub.tell = stalls;
  const { output, errors, code } = await runSpangate(["pull", modelId], shellWith());
  expect({ errors: errors.replaceAll(/^Loading.*\n/gm, ""), code }).toEqual({ errors: "", code: 0 });
  expect(output).toContain(`serve it with: spangate serve --model ${modelId}`);
  const ranges = hub.asked.filter(({ at }) => at === "storage").map(({ range }) => range);
  expect(ranges).toEqual([undefined, expect.stringMatching(/^bytes=\d+-$/)]);

  hub.asked.length = 0;
  const { url, stop } = await serveSpangate(["--dev", "--model", modelId], devSign, shellWith({ HF_HUB_OFFLINE: "1" }));
  const { apiKey } = readDevAccess(join(cwd, ".spangate")) ?? {};
  const models = await fetch(`${url}/v1/models`, { headers: { authorization: `Bearer ${apiKey}` } });
  expect(await models.json()).toMatchObject({ data: [{ id: modelId }] });
  expect(await stop()).toBe(0);
  expect(hub.asked).toEqual([]);
});

test("serve says in one sentence what cannot be, before weights are loaded and anything is made", async () => {
  const elsewhere = { HF_HUB_CACHE: newFolder(), SPANGATE_DATA: join(home, "data") };
  const refused = async (name: string, env: Record<string, string> = {}) => {
    const { errors, code } = await runSpangate(["serve", "--model", name], shellWith({ ...elsewhere, ...env }));
    expect(code).toBe(1);
    expect(existsSync(elsewhere.SPANGATE_DATA)).toBe(false);
    return errors.replaceAll(/^Loading.*\n/gm, "");
  };
  const start = `spangate serve: "no-org/no-model" is no folder here, and as a model of the hub: there is no model`;
  expect(await refused("no-org/no-model")).toStartWith(start);
  expect(await refused(modelId, { HF_HUB_OFFLINE: "1" })).toContain("HF_HUB_OFFLINE keeps the hub from being asked");
  hub.files = { ...single, "config.json": '{"architectures": ["MambaForCausalLM"]}' };
  hub.asked.length = 0;
  expect(await refused(modelId)).toContain('architecture "MambaForCausalLM" is not supported');
  expect(hub.asked.some(({ at }) => at === "storage")).toBe(false);
  hub.files = model;
});

test("doctor tells a model that is not loaded yet apart from all else, and asks nobody", async () => {
  hub.asked.length = 0;
  const { output } = await runSpangate(["doctor"], shellWith({ SPANGATE_MODEL: `${modelId}@v1` }));
  expect(output).toMatch(/^wrong model: SPANGATE_MODEL is .*"spangate pull tiny-org\/tiny-model@v1" loads it/m);
  expect(output).toMatch(/^ok {4}settings$/m);
  expect(output).toMatch(/^ok {4}data folder/m);
  const found = await runSpangate(["doctor"], shellWith({ SPANGATE_MODEL: modelId }));
  expect(found.output).toMatch(/^ok {4}model: .*models--tiny-org--tiny-model\/snapshots/m);
  expect(found.output).toMatch(/^ok {4}memory: cpu: \d+ MiB for weights/m);
  expect(hub.asked).toEqual([]);
});

test("the server alone never asks the hub", async () => {
  const program = join(demoModelFolder, "..", "..", "..", "gateway", "main.ts");
  const child = Bun.spawn([process.execPath, program], {
    ...shellWith({ SPANGATE_MODEL: `${modelId}@v1`, SPANGATE_DATA: join(home, "data") }),
    stdio: ["ignore", "ignore", "pipe"],
  });
  expect(await child.stderr.text()).toMatch(
    /SPANGATE_MODEL is ".*@v1": there is no such folder.*"spangate pull .*@v1"/,
  );
  expect(await child.exited).toBe(1);
});
