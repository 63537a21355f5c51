/** What the npm packages hold, and that they answer where nothing but Node is there. They are laid out, not packed. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import {
  chmodSync,
  chownSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { version } from "../../package.json";
import { stagePackages } from "../../packages/stage.ts";
import { nativePackage, programs, root } from "../../places/places.ts";
import { docxOf, paragraph, pdfOf, pdfPage } from "../extract/documents.ts";
import { until } from "../support/until.ts";
import { expectPages, listing, nodePath, plainUser, type Stranger, stranger } from "./installed.ts";

setDefaultTimeout(120_000);

const nodeModules = join(mkdtempSync(join(tmpdir(), "spangate-stage-")), "node_modules");
const [spangate, native] = ["spangate", nativePackage].map((name) => join(nodeModules, name)) as [string, string];
/** The one platform that packages are tried on; those for another are made here too. */
const isPackaged = process.platform === "linux" && process.arch === "x64";
beforeAll(async () => {
  if (isPackaged) await stagePackages(nodeModules, { arch: "x64" });
});
afterAll(() => {
  chmod("u+w");
  rmSync(join(nodeModules, ".."), { recursive: true, force: true });
});

const names = ["spangate", nativePackage, "@spangate/demo-model", "@oven/bun-linux-x64"];
const describeOf = (name: string) => JSON.parse(readFileSync(join(nodeModules, name, "package.json"), "utf8"));
const filesOf = (folder: string): string[] =>
  readdirSync(folder, { recursive: true, encoding: "utf8" }).filter((path) => statSync(join(folder, path)).isFile());
const mebibytes = (folder: string): number =>
  filesOf(folder).reduce((sum, path) => sum + statSync(join(folder, path)).size, 0) / 2 ** 20;

describe.skipIf(!isPackaged)("the packages", () => {
  test("are these, of one version, without a script", () => {
    for (const name of names) {
      const description = describeOf(name);
      expect(description.name).toBe(name);
      expect(description.scripts).toBeUndefined();
      expect(description.license).toBeString();
      expect(description.version).toBe(name.startsWith("@oven/") ? "1.4.5" : version);
      // Nothing that a list of files leaves out was laid out.
      expect([...description.files, "package.json"].sort()).toEqual(readdirSync(join(nodeModules, name)).sort());
    }
  });

  test("depend on each other alone, in their own versions", () => {
    expect(describeOf("spangate").dependencies).toEqual({ "@spangate/demo-model": version });
    // npm takes those that are for the processor.
    expect(describeOf("spangate").optionalDependencies).toEqual({
      ...{ "@spangate/native-linux-x64": version, "@oven/bun-linux-x64": "1.4.5" },
      ...{ "@spangate/native-linux-arm64": version, "@oven/bun-linux-aarch64": "1.4.5" },
    });
    for (const name of names.slice(1)) expect(describeOf(name)).not.toHaveProperty("dependencies");
  });

  test("have every program, the SQL, the kernels' sources, the documents, and no source of ours else", () => {
    const files = filesOf(spangate);
    for (const name of Object.keys(programs)) expect(files).toContain(`app/${name}.js`);
    const wanted = ["migrations/0001_initial.sql", "kernels/abi.h", "kernels/cpu/kernels.cpp", "docs/operations.md"];
    // Pages of /docs, and their pictures.
    wanted.push("gateway/query/README.md", "docs/pictures/rag.svg");
    for (const file of [...wanted, "LICENSE", "README.md", "NOTICES.txt", "client/query.js"])
      expect(files).toContain(file);
    expect(files.some((file) => /^kernels\/cuda\/.*\.cu$/.test(file))).toBe(true);
    expect(files.filter((file) => file.endsWith(".ts") && !file.endsWith(".d.ts"))).toEqual([]);
    expect(files.filter((file) => /(^|\/)test|\.map$|node_modules/.test(file))).toEqual([]);
    expect(statSync(join(spangate, "bin", "spangate.js")).mode & 0o111).toBe(0o111);
    expect(readFileSync(join(spangate, "bin", "spangate.js"), "utf8")).toStartWith("#!/usr/bin/env node\n");
  });

  test("say whose code they hold", () => {
    const notices = readFileSync(join(spangate, "NOTICES.txt"), "utf8");
    for (const name of ["hono", "zod", "drizzle-orm", "mammoth"])
      expect(notices).toMatch(new RegExp(`^${name} \\d`, "m"));
    expect(readFileSync(join(native, "NOTICES.txt"), "utf8")).toMatch(/^onnxruntime-node 1\.30\.0 \(MIT\)/m);
  });

  test("are no larger than they were", () => {
    expect(mebibytes(spangate)).toBeLessThan(8);
    expect(mebibytes(native)).toBeLessThan(48);
    expect(mebibytes(join(nodeModules, "@spangate/demo-model"))).toBeLessThan(19);
  });

  test("hold no path of the machine that built them", () => {
    const here = [join(import.meta.dir, "..", ".."), tmpdir()];
    const texts = [spangate, join(nodeModules, "@spangate/demo-model"), native].flatMap((folder) =>
      filesOf(folder)
        .filter((file) => /\.(?:js|json|ts|so|txt)$/.test(file))
        .map((file) => join(folder, file)),
    );
    // The documents and sources have a test of their own; a bundle is made here.
    const found = texts.filter((file) => here.some((path) => readFileSync(file, "latin1").includes(`${path}/`)));
    expect(found).toEqual([]);
  });

  test("load on systems as old as onnxruntime does, glibc 2.28, with no libstdc++ newer than its", () => {
    const versions = (file: string, library: string) =>
      [
        ...readFileSync(join(native, file), "latin1").matchAll(
          new RegExp(`\\0${library}_(\\d+)\\.(\\d+)(?:\\.\\d+)?(?=\\0)`, "g"),
        ),
      ].map(([, major, minor]) => Number(major) * 1_000 + Number(minor));
    const kernels = readdirSync(native).find((file) => file.startsWith("cpu-")) ?? "";
    expect(Math.max(...versions(kernels, "GLIBC"))).toBeLessThanOrEqual(2_017);
    expect(versions(kernels, "GLIBCXX")).toEqual([]);
    expect(Math.max(...versions("libonnxruntime.so.1", "GLIBC"))).toBe(2_028);
    expect(Math.max(...versions("vec0.so", "GLIBC"))).toBeLessThanOrEqual(2_028);
  });
});

/** What npm installed is mostly another user's. */
const chmod = (change: string) => Bun.spawnSync(["chmod", "-R", change, nodeModules]);

/** A document for each of the readers. */
async function writeDocuments(folder: string): Promise<void> {
  mkdirSync(folder);
  writeFileSync(join(folder, "page.html"), "<main><p>The extension of Ann Reed is 4711.</p></main>");
  writeFileSync(join(folder, "rows.csv"), "name,extension\nAnn Reed,4711\n");
  writeFileSync(join(folder, "page.pdf"), pdfOf([pdfPage("The extension of Ann Reed is 4711.")]));
  writeFileSync(join(folder, "letter.docx"), await docxOf(paragraph("The extension of Ann Reed is 4711.")));
}

/** A schema is compiled by a thread, which is a program of its own. */
async function expectJson({ folder }: Stranger): Promise<void> {
  const { url, api_key: key } = JSON.parse(readFileSync(join(folder, ".spangate", "dev-access.json"), "utf8"));
  const schema = {
    type: "object",
    properties: { n: { type: "integer" } },
    required: ["n"],
    additionalProperties: false,
  };
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify({
      model: "demo",
      messages: [{ role: "user", content: "A number?" }],
      response_format: { type: "json_schema", json_schema: { name: "n", schema, strict: true } },
      max_tokens: 64,
    }),
  });
  const answer = (await response.json()) as { choices: { message: { content: string } }[] };
  expect(Object.keys(JSON.parse(answer.choices[0]?.message.content ?? ""))).toEqual(["n"]);
}

// Without Node there is nobody to run what npm installs.
describe.skipIf(!isPackaged || nodePath === null)("with Node alone on the path", () => {
  const argv = [nodePath ?? "", join(spangate, "bin", "spangate.js")];

  test("an answer, and nothing written but the data; what the working folder tells Bun is not done", async () => {
    const someone = stranger("packages", plainUser);
    writeFileSync(
      join(someone.folder, "staff.md"),
      "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057.",
    );
    await writeDocuments(join(someone.folder, "documents"));
    // Bun by itself runs this before every program that is started here.
    writeFileSync(join(someone.folder, "bunfig.toml"), 'preload = ["./first.ts"]\n');
    writeFileSync(join(someone.folder, "first.ts"), 'import { appendFileSync } from "fs"; appendFileSync("ran", "x");');
    writeFileSync(join(someone.folder, ".env"), "SPANGATE_PORT=1\n");
    chmod("a-w");
    const before = listing(nodeModules);
    const server = await someone.serve(argv);
    const question = "What is the extension of Jon Vale?";
    const answer = await someone.run([...argv, "ask", "-d", "staff.md", question]);
    expect(answer).toMatchObject({ code: 0, errors: expect.stringContaining("[staff.md] ") });
    expect(answer.output).toContain("3057");
    // Readers of documents are loaded when they are wanted, by a confined program of their own.
    const ingested = await someone.run([...argv, "ingest", "documents", "--new", "all"]);
    expect(ingested).toMatchObject({ code: 0 });
    await expectJson(someone);
    await expectPages(someone);
    const doctor = await someone.run([...argv, "doctor"]);
    expect(doctor.output).not.toContain("wrong");
    expect(doctor.output).toContain(`${nativePackage}/cpu-`);
    expect(server.output()).not.toMatch(/no Landlock|vectors/);
    expect(await server.stop()).toBe(0);
    expect(listing(nodeModules)).toEqual(before);
    chmod("u+w");
    expect(readdirSync(someone.home)).toEqual([]);
    expect(existsSync(join(someone.folder, "ran"))).toBe(false);
    expect(readdirSync(someone.folder).sort()).toEqual([
      ".env",
      ".spangate",
      "bunfig.toml",
      "documents",
      "first.ts",
      "staff.md",
    ]);
    rmSync(join(someone.folder, ".."), { recursive: true });
  });

  test("without kernels that fit and a compiler, without native libraries, without Bun: a sentence each", async () => {
    const someone = stranger("bare");
    const kernels = readdirSync(native).find((file) => file.startsWith("cpu-")) ?? "";
    renameSync(join(native, kernels), join(native, "aside"));
    try {
      const { errors, code } = await someone.run([...argv, "serve", "--dev"]);
      expect(errors).toStartWith("spangate serve: No ready-made kernels fit");
      expect(errors).toContain(nativePackage);
      expect(errors.trim().split("\n")).toHaveLength(1);
      expect(code).toBe(1);
    } finally {
      renameSync(join(native, "aside"), join(native, kernels));
    }
    const away = `${native}-away`;
    renameSync(native, away);
    try {
      const { errors, code } = await someone.run([...argv, "serve", "--dev"]);
      expect(errors).toStartWith(`spangate serve: The package ${nativePackage} is not installed beside spangate`);
      expect(errors.trim().split("\n")).toHaveLength(1);
      expect(code).toBe(1);
      // Nothing was made for a server that cannot run.
      expect(readdirSync(someone.folder)).toEqual([]);
    } finally {
      renameSync(away, native);
    }
    const [oven, aside] = ["@oven", "oven"].map((name) => join(nodeModules, name)) as [string, string];
    renameSync(oven, aside);
    try {
      const { errors, code } = await someone.run([...argv, "--version"]);
      expect(errors).toMatch(
        /^spangate: there is no Bun 1\.4 or newer: install the package @oven\/bun-linux-x64, .*\n$/,
      );
      expect(code).toBe(1);
    } finally {
      renameSync(aside, oven);
    }
    expect(await someone.run([...argv, "--version"])).toMatchObject({ output: version, code: 0 });
    rmSync(join(someone.folder, ".."), { recursive: true });
  });
});

const setpriv = process.getuid?.() === 0 ? Bun.which("setpriv") : null;

/** What the unit of systemd starts, with a release and folders that stand for its own. */
function unitCommand(release: string, state: string, cache: string) {
  const unit = readFileSync(join(root, "deploy", "spangate.service"), "utf8");
  const field = (name: string): string => new RegExp(`^${name}=(.*)$`, "m").exec(unit)?.[1] ?? "";
  const placed = (text: string): string =>
    text
      .replaceAll("/opt/spangate", release)
      .replaceAll(field("WorkingDirectory"), state)
      .replaceAll("/var/cache/spangate", cache);
  const variables = placed(field("Environment"))
    .split(" ")
    .map((each) => each.split("=", 2) as [string, string]);
  // A user without rights, as DynamicUser makes one.
  const user = setpriv === null ? [] : [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
  const env = { PATH: "/usr/bin:/bin", SPANGATE_PORT: "0", ...Object.fromEntries(variables) };
  return { argv: [...user, ...placed(field("ExecStart")).split(" ")], env };
}

test.skipIf(!isPackaged)("the systemd unit's command line, as its user, in an empty state folder", async () => {
  const release = dirname(nodeModules);
  mkdirSync(join(release, "bin"));
  copyFileSync(join(root, "packages", "launcher", "spangate.sh"), join(release, "bin", "spangate"));
  for (const path of [release, join(release, "bin", "spangate")]) chmodSync(path, 0o755);
  const folder = mkdtempSync(join(tmpdir(), "spangate-unit-"));
  chmodSync(folder, 0o755);
  const [state, cache] = ["state", "cache"].map((name) => join(folder, name)) as [string, string];
  for (const path of [state, cache]) {
    mkdirSync(path, { mode: 0o700 });
    if (setpriv !== null) chownSync(path, 65_534, 65_534);
  }
  const { argv, env } = unitCommand(release, state, cache);
  const before = listing(release);
  let adminKey = "";
  for (const isFirst of [true, false]) {
    await using child = Bun.spawn(argv, { cwd: state, env, stdio: ["ignore", "pipe", "pipe"] });
    let output = "";
    const read = async (stream: ReadableStream<Uint8Array>): Promise<void> => {
      for await (const bytes of stream) output += new TextDecoder().decode(bytes);
    };
    for (const stream of [child.stdout, child.stderr]) void read(stream);
    await until(() => /"worker ready"/.test(output) || child.exitCode !== null, "a worker", 40_000);
    const url = /listening on (\S+)/.exec(output)?.[1] ?? "";
    if (isFirst) {
      await until(() => /admin key, shown this once: /.test(output), "the first key");
      adminKey = /shown this once: (\S+)/.exec(output)?.[1] ?? "";
    }
    const { status } = await fetch(`${url}/admin/v1/tenants`, { headers: { authorization: `Bearer ${adminKey}` } });
    expect(status).toBe(200);
    expect(output.includes("admin key")).toBe(isFirst);
    child.kill("SIGTERM");
    expect(await child.exited).toBe(0);
  }
  expect(readdirSync(state)).toEqual(["data"]);
  expect(listing(release)).toEqual(before);
  rmSync(folder, { recursive: true });
});
