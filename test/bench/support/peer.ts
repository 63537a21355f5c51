/**
 * llama.cpp as a peer to measure against: never a dependency. Its tools come from a folder that the caller names
 * (gguf.py and llama-bench.mjs), its library from npm into a temporary folder, numpy from the system's Python.
 */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { CommandError } from "../../../gateway/cli/support/command.ts";

export interface Throughput {
  readonly length: number;
  readonly prefillTokensPerSecond: number;
  readonly decodeTokensPerSecond: number;
}

async function capture(command: readonly string[], cwd: string, what: string): Promise<string> {
  const child = Bun.spawn([...command], { cwd, stdio: ["ignore", "pipe", "pipe"] });
  const [output, errors, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (code !== 0) throw new CommandError(`${what} failed: ${(errors || output).trim().slice(-1_000)}`);
  return output;
}

export class LlamaPeer {
  readonly #tools: string;
  readonly #folder: string;
  readonly #python: string;

  private constructor(tools: string, folder: string, python: string) {
    this.#tools = tools;
    this.#folder = folder;
    this.#python = python;
  }

  /** @throws CommandError with what is missing. */
  static async open(tools: string | undefined): Promise<LlamaPeer> {
    if (tools === undefined) {
      throw new CommandError("pass --tools DIR or set SPANGATE_PEER_TOOLS: the folder of gguf.py and llama-bench.mjs");
    }
    const missing = ["gguf.py", "llama-bench.mjs"].find((name) => !existsSync(join(tools, name)));
    if (missing !== undefined) throw new CommandError(`${tools} has no ${missing}`);
    const python = await pythonWithNumpy();
    // Kept between runs: the library is large.
    const folder = join(tmpdir(), "spangate-llama-peer");
    if (!existsSync(join(folder, "node_modules", "node-llama-cpp"))) {
      mkdirSync(folder, { recursive: true });
      writeFileSync(join(folder, "package.json"), '{ "private": true }');
      await capture(["npm", "install", "--ignore-scripts", "--no-save", "node-llama-cpp"], folder, "npm install");
    }
    return new LlamaPeer(resolve(tools), folder, python);
  }

  /** Does gguf.py write models with experts? Older ones of it do not. */
  get writesExperts(): boolean {
    return readFileSync(join(this.#tools, "gguf.py"), "utf8").includes("num_experts");
  }

  /** Writes a Hugging Face folder's weights as a GGUF of 8-bit weights. */
  async convert(modelFolder: string, ggufPath: string): Promise<void> {
    await capture([this.#python, join(this.#tools, "gguf.py"), ggufPath, "q8_0", modelFolder], this.#folder, "gguf.py");
  }

  async measure(ggufPath: string, lengths: readonly number[], threadCount: number): Promise<Throughput[]> {
    const script = join(this.#tools, "llama-bench.mjs");
    const flags = ["--lengths", lengths.join(","), "--threads", String(threadCount)];
    const output = await capture(["node", script, ggufPath, ...flags], this.#folder, "llama-bench.mjs");
    const lines = output.split("\n").filter((line) => line.startsWith("{"));
    return lines.map((line) => JSON.parse(line) as Throughput);
  }
}

async function pythonWithNumpy(): Promise<string> {
  const bins = (process.env.PATH ?? "").split(":").map((folder) => join(folder, "python3"));
  for (const python of bins.filter((path) => existsSync(path))) {
    const child = Bun.spawn([python, "-c", "import numpy"], { stdio: ["ignore", "ignore", "ignore"] });
    if ((await child.exited) === 0) return python;
  }
  throw new CommandError("no python3 on the PATH has numpy (Debian: apt-get install python3-numpy)");
}
