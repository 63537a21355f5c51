/** Models come from the hub into its cache as other tools lay it out, whole or not at all. */
import { beforeEach, describe, expect, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { parseHubModel } from "../../gateway/hub/hub-model.ts";
import { hubSettings } from "../../gateway/hub/hub-settings.ts";
import { cachedModel, pullModel } from "../../gateway/hub/pull.ts";
import { gitHash, type Listing, modelId, sha256 } from "../support/hub.ts";
import { bytesOf, modelOf, newFolder, openRig, pace, sharded, single, weights } from "./rig.ts";

const rig = openRig();

describe("the cache", () => {
  test("has blobs by their hashes, a snapshot of links and a ref, as other tools have it", async () => {
    rig.hub.files = { ...sharded, "README.md": "# Tiny", "onnx/model.onnx": "x", "pytorch_model.bin": weights("z") };
    const { folder, commit, bytes } = await rig.pull();
    expect(folder).toBe(join(rig.modelFolder, "snapshots", rig.hub.commit));
    expect(commit).toBe(rig.hub.commit);
    expect(bytes).toBe(Object.values(sharded).reduce((sum, content) => sum + bytesOf(content).length, 0));
    for (const [path, content] of Object.entries(sharded)) {
      const hash = path.endsWith(".safetensors") ? sha256(bytesOf(content)) : gitHash(bytesOf(content));
      const up = "../".repeat(path.split("/").length + 1);
      expect(readlinkSync(join(folder, path))).toBe(`${up}blobs/${hash}`);
      expect(readFileSync(join(folder, path))).toEqual(bytesOf(content));
    }
    expect(readFileSync(join(rig.modelFolder, "refs", "main"), "utf8")).toBe(rig.hub.commit);
    expect(rig.hub.sent().toSorted()).toEqual(Object.keys(sharded).toSorted());
    expect(rig.blobs()).toHaveLength(Object.keys(sharded).length);
    expect(cachedModel(modelOf(), rig.settingsOf())).toBe(folder);
  });

  test("that other tools filled is used as it is: nothing but the listing is asked for", async () => {
    const snapshot = join(rig.modelFolder, "snapshots", rig.hub.commit);
    for (const [path, content] of Object.entries(sharded)) {
      const name = path.endsWith(".safetensors") ? sha256(bytesOf(content)) : gitHash(bytesOf(content));
      mkdirSync(join(rig.modelFolder, "blobs"), { recursive: true });
      writeFileSync(rig.blob(name), content);
      mkdirSync(dirname(join(snapshot, path)), { recursive: true });
      symlinkSync(rig.blob(name), join(snapshot, path));
    }
    mkdirSync(join(rig.modelFolder, "refs"));
    writeFileSync(join(rig.modelFolder, "refs", "main"), `${rig.hub.commit}\n`);
    expect(cachedModel(modelOf(), rig.settingsOf())).toBe(snapshot);
    await rig.pull();
    expect(rig.hub.asked.map(({ path }) => path)).toEqual([`/api/models/${modelId}/revision/main?blobs=true`]);
  });

  test("is not whole without a shard, the configuration or the ref", async () => {
    const { folder } = await rig.pull();
    const isWhole = () => cachedModel(modelOf(), rig.settingsOf()) !== undefined;
    for (const path of ["model-2.safetensors", "config.json", "tokenizer.json"]) {
      const target = realpathSync(join(folder, path));
      const content = readFileSync(target);
      rmSync(target);
      expect(isWhole()).toBe(false);
      writeFileSync(target, content);
      expect(isWhole()).toBe(true);
    }
    writeFileSync(join(folder, "model.safetensors.index.json"), "no index");
    expect(isWhole()).toBe(false);
    expect(cachedModel(modelOf(`${modelId}@v1`), rig.settingsOf())).toBeUndefined();
  });

  test.each([["v1"], ["refs/pr/1"], ["0123456789abcdef0123456789abcdef01234567"]])(
    "knows the revision %s",
    async (revision) => {
      const { folder } = await rig.pull(`${modelId}@${revision}`);
      expect(cachedModel(modelOf(`${modelId}@${revision}`), rig.settingsOf())).toBe(folder);
      expect(cachedModel(modelOf(), rig.settingsOf())).toBeUndefined();
      expect(existsSync(join(rig.modelFolder, "refs"))).toBe(revision !== rig.hub.commit);
    },
  );

  test("keeps what it served until a newer commit is whole", async () => {
    const { folder } = await rig.pull();
    rig.hub.files = { ...sharded, "model-2.safetensors": weights("n") };
    rig.hub.listing = (listing: Listing) => ({ ...listing, sha: "f".repeat(40) });
    await expect(rig.pull()).rejects.toThrow("a file that");
    expect(cachedModel(modelOf(), rig.settingsOf())).toBe(folder);
  });
});

describe("the token", () => {
  test("goes to the hub, through its own redirects, and to no other host", async () => {
    rig.hub.fault = ({ path }) =>
      path.startsWith("/api/models/old-org/")
        ? { status: 307, headers: { location: `/api/models/${modelId}/revision/main?blobs=true` } }
        : undefined;
    rig.hub.files = single;
    await pullModel({ id: "old-org/tiny-model", revision: "main" }, rig.settingsOf({ HF_TOKEN: "hf_secret" }), {
      pace,
    }).catch(() => undefined);
    await rig.pull(modelId, { HF_TOKEN: "hf_secret" });
    const [first, second] = rig.hub.asked;
    expect([first?.token, second?.token]).toEqual(["Bearer hf_secret", "Bearer hf_secret"]);
    const storage = rig.hub.asked.filter(({ at }) => at === "storage");
    expect(storage).toHaveLength(1);
    expect(storage.map(({ token }) => token)).toEqual([undefined]);
  });

  test("comes from where the hub's own tools have it", () => {
    const home = newFolder();
    const file = join(home, ".cache", "huggingface", "token");
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, "hf_of_file\n");
    expect(hubSettings({ HOME: home })).toEqual({
      endpoint: "https://huggingface.co",
      cacheDir: join(home, ".cache", "huggingface", "hub"),
      token: "hf_of_file",
      isOffline: false,
    });
    expect(hubSettings({ HOME: home, HF_TOKEN: "hf_own" }).token).toBe("hf_own");
    expect(hubSettings({ HOME: home, HF_HUB_DISABLE_IMPLICIT_TOKEN: "1" }).token).toBeUndefined();
    const moved = hubSettings({
      HOME: home,
      HF_HOME: "~/elsewhere",
      HF_HUB_OFFLINE: "on",
      HF_ENDPOINT: "http://m.example/",
    });
    expect(moved).toEqual({
      endpoint: "http://m.example",
      cacheDir: join(home, "elsewhere", "hub"),
      token: undefined,
      isOffline: true,
    });
    expect(() => hubSettings({ HOME: home, HF_ENDPOINT: "hub" })).toThrow("HF_ENDPOINT must be");
    expect(() => hubSettings({ HOME: home, HF_TOKEN: "a b" })).toThrow("HF_TOKEN must hold");
  });
});

describe("a file", () => {
  const large = sha256(bytesOf(single["model.safetensors"]));
  beforeEach(() => {
    rig.hub.files = single;
  });
  const storageRanges = () => rig.hub.asked.flatMap(({ at, range }) => (at === "storage" ? [range] : []));

  test("that breaks off is gone on with from where it stood", async () => {
    let cuts = 2;
    rig.hub.tell = (path) => (path.endsWith(".safetensors") && cuts-- > 0 ? { cutAfter: 65_536 } : undefined);
    const { folder } = await rig.pull();
    expect(storageRanges()).toEqual([undefined, "bytes=65536-", "bytes=131072-"]);
    expect(readFileSync(join(folder, "model.safetensors"))).toEqual(bytesOf(single["model.safetensors"]));
  });

  test("that an earlier process has begun is gone on with", async () => {
    mkdirSync(join(rig.modelFolder, "blobs"), { recursive: true });
    writeFileSync(rig.blob(`${large}.incomplete`), weights("c", 150_000));
    const shown: [number, number][] = [];
    const { folder } = await rig.pull(modelId, {}, { onProgress: (done, total) => shown.push([done, total]) });
    expect(storageRanges()).toEqual(["bytes=150000-"]);
    expect(sha256(readFileSync(join(folder, "model.safetensors")))).toBe(large);
    expect(shown.at(-1)).toEqual([200_000, 200_000]);
    // The other two files are the same.
    expect(rig.blobs()).toHaveLength(2);
  });

  test.each([
    ["damaged", weights("x", 150_000), ["bytes=150000-", undefined]],
    ["too long", weights("c", 200_001), [undefined]],
    ["whole, but for its name", weights("c", 200_000), []],
  ])("that an earlier process has left %s comes whole", async (_, left, ranges) => {
    mkdirSync(join(rig.modelFolder, "blobs"), { recursive: true });
    writeFileSync(rig.blob(`${large}.incomplete`), left);
    const { folder } = await rig.pull();
    expect(storageRanges()).toEqual(ranges);
    expect(sha256(readFileSync(join(folder, "model.safetensors")))).toBe(large);
  });

  test("comes whole from a server that knows no ranges", async () => {
    let cuts = 1;
    rig.hub.tell = (path) =>
      path.endsWith(".safetensors") ? { knowsNoRanges: true, ...(cuts-- > 0 && { cutAfter: 65_536 }) } : undefined;
    const { folder } = await rig.pull();
    expect(sha256(readFileSync(join(folder, "model.safetensors")))).toBe(large);
  });

  test.each(["model.safetensors", "config.json"])("with another hash than is listed is refused: %s", async (name) => {
    const other = name === "config.json" ? bytesOf("[]") : weights("d", 200_000);
    rig.hub.tell = (path) => (path === name ? { bytes: other } : undefined);
    await expect(rig.pull()).rejects.toThrow(`${name} came with another hash than the hub lists`);
    expect(cachedModel(modelOf(), rig.settingsOf())).toBeUndefined();
    const hash = name === "config.json" ? gitHash(bytesOf("{}")) : large;
    expect(existsSync(rig.blob(hash))).toBe(false);
    rig.hub.tell = () => undefined;
    await rig.pull();
    expect(existsSync(rig.blob(hash))).toBe(true);
  });

  test.each([
    ["longer", { bytes: weights("c", 200_001) }, "and sends 200001"],
    ["shorter", { bytes: weights("c", 100) }, "and sends 100"],
    ["longer without saying so", { bytes: weights("c", 900_000), isChunked: true }, "and sends more"],
  ])("that is %s than listed is refused", async (_, told, message) => {
    rig.hub.tell = (path) => (path === "model.safetensors" ? told : undefined);
    await expect(rig.pull()).rejects.toThrow(message);
    expect(existsSync(rig.blob(large))).toBe(false);
  });

  test("of another range than asked for is refused", async () => {
    mkdirSync(join(rig.modelFolder, "blobs"), { recursive: true });
    writeFileSync(rig.blob(`${large}.incomplete`), weights("c", 10));
    rig.hub.tell = (path) =>
      path === "model.safetensors" ? { headers: { "content-range": "bytes 9-199998/200000" } } : undefined;
    await expect(rig.pull()).rejects.toThrow("from another byte on");
  });

  test("that never comes whole ends the pull", async () => {
    rig.hub.tell = (path) => (path === "model.safetensors" ? { cutAfter: 0 } : undefined);
    await expect(rig.pull()).rejects.toThrow("broke off");
    expect(storageRanges()).toHaveLength(6);
  });

  test("that stands still is asked for again", async () => {
    let isStill = true;
    rig.hub.tell = (path) => {
      if (path !== "model.safetensors" || !isStill) return undefined;
      isStill = false;
      return { headers: { "content-length": "200000" }, bytes: weights("c", 100) };
    };
    await rig.pull(modelId, {}, { pace: { stallMs: 300, retryMs: 1 } });
    expect(storageRanges()).toContain("bytes=100-");
  });
});

test("two pulls at once load each file once", async () => {
  const others = [rig.pull(), rig.pull(), rig.pull()];
  const folders = (await Promise.all(others)).map(({ folder }) => folder);
  expect(new Set(folders).size).toBe(1);
  expect(rig.hub.sent().toSorted()).toEqual(Object.keys(sharded).toSorted());
});

test.each([
  ["Qwen/Qwen3-8B", { id: "Qwen/Qwen3-8B", revision: "main" }],
  ["a/b.c_d@refs/pr/12", { id: "a/b.c_d", revision: "refs/pr/12" }],
  ...[
    "gpt2",
    "a/b/c",
    "./a/b",
    "../b",
    "a/..",
    "a/b--c",
    "a--b/c",
    "a/b@",
    "a/b@../x",
    "a/b@x..y",
    "a/b@/x",
    "a/b@x/",
    "a/b@x//y",
    "-a/b",
    "a/.b",
    `a/${"b".repeat(100)}`,
    `a/b@${"c".repeat(201)}`,
    "a/b@ x",
    "a/b\n",
  ].map((name) => [name, undefined] as const),
])("%p is %j", (name, model) => {
  expect(parseHubModel(name)).toEqual(model as ReturnType<typeof parseHubModel>);
});
