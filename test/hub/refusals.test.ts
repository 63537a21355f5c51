/** Whatever a hub says or refuses: nothing is made or asked for that should not be, and a stranger reads why. */
import { describe, expect, test } from "bun:test";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { gitHash, type Listing, modelId, sha256 } from "../support/hub.ts";
import { bytesOf, indexOf, openRig, sharded, single } from "./rig.ts";

const rig = openRig();

describe("a hub that lies", () => {
  const places = () => readdirSync(dirname(rig.cacheDir), { recursive: true }).map(String).toSorted();
  const withFile = (rfilename: string) => (listing: Listing) => ({
    ...listing,
    siblings: [...listing.siblings, { rfilename, size: 2, blobId: gitHash(bytesOf("{}")) }],
  });

  test.each(["../config.json", "/etc/passwd", "a/../../../b", "additional_chat_templates/../../x", "x\\y", "\0"])(
    "about names has none of them made or asked for: %p",
    async (name) => {
      rig.hub.listing = withFile(name);
      await rig.pull();
      const made = places();
      rig.hub.stop();
      rmSync(rig.cacheDir, { recursive: true });
      await rig.open();
      await rig.pull();
      expect(made).toEqual(places());
      expect(rig.hub.sent()).toHaveLength(Object.keys(sharded).length);
    },
  );

  test.each([
    "../../x.safetensors",
    "/etc/x.safetensors",
    "sub/model.safetensors",
    "config.json",
    ".safetensors",
    "gone.safetensors",
  ])("in its index is refused: %p", async (shard) => {
    rig.hub.files = { ...sharded, "model.safetensors.index.json": indexOf("model-1.safetensors", shard) };
    await expect(rig.pull()).rejects.toThrow(`names ${JSON.stringify(shard)}, which is no file of the repository`);
    expect(rig.hub.asked.filter(({ at }) => at === "storage")).toEqual([]);
  });

  test.each([
    ["no index", "[]", 'has no "weight_map"'],
    ["an index of nothing", '{"weight_map": {}}', 'has no "weight_map"'],
    ["too many shards", indexOf(...Array.from({ length: 1_025 }, (_, i) => `m${i}.safetensors`)), "more than 1024"],
  ])("about its shards is refused: %s", async (_, index, message) => {
    rig.hub.files = { ...sharded, "model.safetensors.index.json": index };
    await expect(rig.pull()).rejects.toThrow(message);
  });

  const spoiled = (change: (file: Listing["siblings"][number]) => object) => (listing: Listing) => ({
    ...listing,
    siblings: listing.siblings.map((file) => ({ ...file, ...change(file) })),
  });
  test.each<[string, (listing: Listing) => unknown, RegExp]>([
    ["a commit that is a path", (listing) => ({ ...listing, sha: "../../../x" }), /has no listing of .*"sha"/],
    ["blobs that are paths", spoiled(() => ({ blobId: "../../x", lfs: null })), /has no weights|has no config/],
    [
      "hashes of another length",
      spoiled(({ lfs }) => (lfs ? { lfs: { ...lfs, sha256: "ab" } } : {})),
      /has no weights|index/,
    ],
    ["negative sizes", spoiled(() => ({ size: -1 })), /"siblings\.0\.size"/],
    [
      "a configuration of a terabyte",
      spoiled(({ rfilename }) => (rfilename === "config.json" ? { size: 2 ** 40 } : {})),
      /config\.json has 1099511627776 bytes, more than the/,
    ],
    [
      "weights of petabytes",
      spoiled(({ lfs }) => (lfs ? { lfs: { ...lfs, size: 2 ** 50 } } : {})),
      /model-1\.safetensors has 1125899906842624 bytes/,
    ],
    ["no list", () => [], /has no listing/],
    [
      "10,001 files",
      (listing) => ({
        ...listing,
        siblings: Array.from({ length: 10_001 }, (_, i) => ({ ...listing.siblings[0], rfilename: `${i}` })),
      }),
      /10001 files, more than 10000/,
    ],
  ])("is refused: %s", async (_, listing, message) => {
    rig.hub.listing = listing;
    await expect(rig.pull()).rejects.toThrow(message);
    expect(rig.blobs().filter((name) => name.length === 64)).toEqual([]);
  });

  test("at length is cut off", async () => {
    rig.hub.listing = () => "x".repeat(17 * 2 ** 20);
    await expect(rig.pull()).rejects.toThrow("listing is too long");
  });

  test("about where a file is, is not followed from TLS to plain HTTP, or in circles", async () => {
    rig.hub.fault = ({ path }) =>
      path.includes("/resolve/") ? { status: 302, headers: { location: path } } : undefined;
    await expect(rig.pull()).rejects.toThrow("redirects more than 5 times");
    rig.hub.fault = ({ path }) =>
      path.includes("/resolve/") ? { status: 302, headers: { location: "file:///etc/passwd" } } : undefined;
    await expect(rig.pull()).rejects.toThrow("redirects to file:");
  });
});

describe("what a stranger reads", () => {
  const refusing = (status: number, headers: Record<string, string> = {}) => {
    rig.hub.fault = () => ({ status, headers });
  };

  test.each<[string, Record<string, string>, string]>([
    ["GatedRepo", {}, "is gated: accept its terms at HUB/tiny-org/tiny-model and then set HF_TOKEN"],
    ["GatedRepo", { HF_TOKEN: "hf_secret" }, "with the account of your token"],
    ["RepoNotFound", {}, "there is no model tiny-org/tiny-model on 127.0.0.1"],
    ["RepoNotFound", { HF_TOKEN: "hf_secret" }, "or the token may not read it"],
  ])("%s %j", async (code, env, message) => {
    refusing(code === "GatedRepo" ? 403 : 404, { "x-error-code": code });
    const error = await rig.pull(modelId, env).catch((reason: Error) => reason);
    expect(String(error)).toContain(message.replace("HUB", rig.hub.endpoint));
    expect(String(error)).not.toContain("hf_secret");
  });

  test("a gated model lists its files, and sends none", async () => {
    rig.hub.fault = ({ path }) =>
      path.includes("/resolve/") ? { status: 401, headers: { "x-error-code": "GatedRepo" } } : undefined;
    await expect(rig.pull()).rejects.toThrow("is gated");
  });

  test("no such revision", async () => {
    await expect(rig.pull(`${modelId}@v9`)).rejects.toThrow('tiny-org/tiny-model has no revision "v9" on 127.0.0.1');
  });

  test("a hub that is busy is asked again, as it wishes", async () => {
    let busy = 3;
    rig.hub.fault = () => (busy-- > 0 ? { status: 429, headers: { "retry-after": "0" } } : undefined);
    const told: string[] = [];
    await rig.pull(modelId, {}, { onRetry: (problem, waitMs) => told.push(`${problem}; ${waitMs}`) });
    expect(told).toHaveLength(3);
    for (const line of told) expect(line).toMatch(/answers 429 .*; 0$/);
    refusing(503, { "x-error-message": "maintenance\u0085of\u00e9" });
    rig.hub.asked.length = 0;
    await expect(rig.pull()).rejects.toThrow(/answers 503 \(maintenance of \) for tiny-org/);
    expect(rig.hub.asked).toHaveLength(6);
  });

  test("no network, no hub", async () => {
    rig.hub.stop();
    await expect(rig.pull()).rejects.toThrow(
      /^127\.0\.0\.1:\d+ cannot be reached or broke off \(ECONNREFUSED\): look at the network/,
    );
    await rig.open();
    rig.hub.fault = () => ({ status: 200, body: "<html>" });
    await expect(rig.pull()).rejects.toThrow("is no hub: it answers without JSON (HF_ENDPOINT)");
  });

  test("offline", async () => {
    await expect(rig.pull(modelId, { HF_HUB_OFFLINE: "1" })).rejects.toThrow(
      `tiny-org/tiny-model is not whole in ${rig.cacheDir}, and HF_HUB_OFFLINE keeps the hub from being asked`,
    );
    expect(rig.hub.asked).toEqual([]);
  });

  test("not enough disk: nothing large is asked for", async () => {
    rig.hub.files = single;
    const freeBytes = () => 64 * 2 ** 20 + 199_999;
    await expect(rig.pull(modelId, {}, { freeBytes })).rejects.toThrow(
      /needs 200\.0 kB more, and 67\.3 MB are free on the disk of .*HF_HUB_CACHE/,
    );
    expect(rig.hub.asked.filter(({ at }) => at === "storage")).toEqual([]);
    mkdirSync(join(rig.modelFolder, "blobs"), { recursive: true });
    writeFileSync(rig.blob(`${sha256(bytesOf(single["model.safetensors"]))}.incomplete`), "c");
    await rig.pull(modelId, {}, { freeBytes });
  });

  test.each<[string, Record<string, string>, string]>([
    [
      "GGUF alone",
      { "config.json": "{}", "tiny.Q4_K_M.gguf": "GGUF" },
      "tiny-org/tiny-model cannot be served: its weights are GGUF files, which are not supported",
    ],
    ["pickles alone", { "config.json": "{}", "pytorch_model.bin": "x" }, "which can run code and are not read"],
    ["no weights", { "config.json": "{}" }, "it has no weights (*.safetensors)"],
    ["other safetensors", { "adapter_model.safetensors": "x" }, "safetensors of other names"],
    ["no tokenizer", { "config.json": "{}", "model.safetensors": "x" }, "it has no tokenizer.json"],
  ])("%s", async (_, files, message) => {
    rig.hub.files = files;
    await expect(rig.pull()).rejects.toThrow(`${message}`);
    expect(rig.hub.sent()).toEqual([]);
  });

  test("what cannot be served is said before its weights are loaded", async () => {
    const beforeWeights = (folder: string) => {
      expect(readFileSync(join(folder, "config.json"), "utf8")).toBe(sharded["config.json"]);
      throw new Error("no such architecture");
    };
    await expect(rig.pull(modelId, {}, { beforeWeights })).rejects.toThrow("no such architecture");
    expect(rig.hub.asked.filter(({ at }) => at === "storage")).toEqual([]);
  });
});
