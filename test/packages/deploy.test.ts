/** The files that run a release elsewhere: images, compose, a unit of systemd. Nothing is built here. */
import { describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { validate } from "dockerfile-utils";
import { settings } from "../../gateway/settings/table.ts";
import { version } from "../../package.json";
import { root } from "../../places/places.ts";

const folder = join(root, "deploy");
const read = (name: string): string => readFileSync(join(folder, name), "utf8");
const dockerfiles = readdirSync(folder).filter((name) => name.endsWith("ockerfile"));

/** Instructions with continued lines joined, comments left out. */
function instructions(name: string): readonly string[] {
  const text = read(name).replace(/^#.*\n/gm, "");
  return text
    .replace(/\\\n\s*/g, "")
    .split("\n")
    .filter((line) => line !== "");
}

test("the images are for CPUs and for CUDA", () => {
  expect(dockerfiles.sort()).toEqual(["Dockerfile", "cuda.Dockerfile"]);
});

describe.each(dockerfiles)("%s", (name) => {
  const lines = instructions(name);
  const last = (word: string): string => lines.findLast((line) => line.startsWith(`${word} `)) ?? "";

  test("has no fault that a linter finds", () => {
    expect(validate(read(name)).map(({ message, range }) => `${range.start.line + 1}: ${message}`)).toEqual([]);
  });

  test("names its base with a version, and downloads nothing into it", () => {
    expect(last("FROM")).toMatch(/^FROM [\w./-]+:(?!latest)[\w.-]+$/);
    expect(lines.filter((line) => /^ADD |curl|wget|apt-get|npm|https?:/.test(line))).toEqual([]);
  });

  test("runs as a user that is not root, owns nothing but its volume, and says how it is", () => {
    expect(last("USER")).toBe("USER 10001:10001");
    expect(lines.filter((line) => /--chown|chmod/.test(line))).toEqual([]);
    expect(last("VOLUME")).toBe('VOLUME ["/var/lib/spangate"]');
    expect(last("HEALTHCHECK")).toEndWith('CMD ["spangate", "status"]');
    // In a shell's form the shell would get the signals.
    expect(last("ENTRYPOINT")).toBe('ENTRYPOINT ["spangate"]');
  });

  test("sets what settings there are, all of it written to the volume", () => {
    const set = [...last("ENV").matchAll(/\b([A-Z_]+)=(\S+)/g)].map(
      ([, key = "", value = ""]) => [key, value] as const,
    );
    const known = new Set([...settings.map(([key]) => key), "PATH", "XDG_CACHE_HOME"]);
    expect(set.map(([key]) => key).filter((key) => !known.has(key))).toEqual([]);
    const folders = set.filter(([key]) => ["SPANGATE_DATA", "XDG_CACHE_HOME"].includes(key)).map(([, value]) => value);
    expect(folders).toHaveLength(2);
    for (const each of folders) expect(each).toStartWith("/var/lib/spangate/");
  });
});

describe("compose.yaml", () => {
  interface Service {
    readonly build: { readonly context: string; readonly dockerfile: string };
    readonly [key: string]: unknown;
  }
  const { services, volumes } = Bun.YAML.parse(read("compose.yaml")) as {
    services: Readonly<Record<string, Service>>;
    volumes: object;
  };

  test("builds what is there, under this version", () => {
    for (const { build, image } of Object.values(services)) {
      expect(dockerfiles).toContain(build.dockerfile.replace("deploy/", ""));
      expect(build.context).toBe("..");
      expect(image).toMatch(new RegExp(`^spangate:${version}(-cuda)?$`));
    }
    expect(Object.keys(services)).toEqual(["cpu", "cuda"]);
    expect(services.cuda?.profiles).toEqual(["cuda"]);
  });

  test("gives containers no more than they need", () => {
    for (const service of Object.values(services)) {
      expect(service).toMatchObject({ read_only: true, cap_drop: ["ALL"], security_opt: ["no-new-privileges:true"] });
      expect(service.ports).toEqual(["127.0.0.1:8080:8080"]);
      expect(service.volumes).toEqual(["spangate:/var/lib/spangate"]);
    }
    expect(Object.keys(volumes)).toEqual(["spangate"]);
  });
});

describe("spangate.service", () => {
  const unit = read("spangate.service");

  test("keeps what it writes to its own folders, and lets a document's reader be ended alone", () => {
    const needed = ["DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes", "OOMPolicy=continue"];
    for (const line of [...needed, "CapabilityBoundingSet="]) expect(unit.split("\n")).toContain(line);
    // Bun compiles at run time.
    expect(unit).not.toMatch(/^MemoryDenyWriteExecute/m);
    const [, variables = ""] = /^Environment=(.*)$/m.exec(unit) ?? [];
    for (const each of variables.split(" "))
      expect(each).toMatch(/^(?:SPANGATE_DATA=\/var\/lib|XDG_CACHE_HOME=\/var\/cache)\/spangate/);
  });

  const analyze = Bun.which("systemd-analyze");
  test.skipIf(analyze === null)("is what systemd understands, and well enough shut in", () => {
    // Its program is not on this machine.
    const there = mkdtempSync(join(tmpdir(), "spangate-unit-"));
    const path = join(there, "spangate.service");
    writeFileSync(path, unit.replace("/opt/spangate/bin/spangate", "/bin/true"));
    const run = (...args: readonly string[]) => Bun.spawnSync([analyze ?? "", ...args, path]);
    const verified = run("verify", "--man=no");
    expect(`${verified.stdout}${verified.stderr}`).toBe("");
    expect(verified.exitCode).toBe(0);
    // Exposure from 0 to 10, here in tenths.
    const { stdout, exitCode } = run("security", "--offline=true", "--threshold=20", "--no-pager");
    expect(stdout.toString()).toMatch(/Overall exposure level/);
    expect(exitCode).toBe(0);
    rmSync(there, { recursive: true });
  });
});
