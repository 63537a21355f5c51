/** Whether a server answers, and whether one could start here. */
import { accessSync, constants, existsSync } from "node:fs";
import { dirname } from "node:path";
import { buildCpuKernels } from "../../../kernels/build.ts";
import { withSecrets } from "../../process/secret-settings.ts";
import type { HttpClient } from "../support/client.ts";
import { type Command, type CommandInput, serverFlags } from "../support/command.ts";
import { connect, urlOf } from "../support/connect.ts";
import { firstModelId } from "../support/operations.ts";

interface Readiness {
  readonly status: string;
  readonly workers: readonly { readonly id: string; readonly state: string }[];
}

async function readinessOf(url: string): Promise<Readiness | undefined> {
  const answer = await fetch(`${url}/ready`, { signal: AbortSignal.timeout(5_000) }).catch(() => undefined);
  return (await answer?.json().catch(() => undefined)) as Readiness | undefined;
}

export const statusCommand: Command = {
  name: "status",
  summary: "Say whether the server answers, which model it serves and how its workers are.",
  usage: "[--url URL]",
  flags: serverFlags,
  async run(input) {
    const url = urlOf(input);
    const found = await readinessOf(url);
    if (found === undefined) {
      console.log(`${url}: no server answers; start one with "spangate serve --dev"`);
      return 1;
    }
    console.log(`${url}: ${found.status.replace("_", " ")}`);
    console.log(`model: ${await modelOf(input)}`);
    for (const { id, state } of found.workers) console.log(`${id}: ${state}`);
    return found.status === "ready" ? 0 : 1;
  },
};

async function modelOf(input: CommandInput): Promise<string> {
  try {
    return await firstModelId(connect(input));
  } catch (error) {
    return `not known: ${error instanceof Error ? error.message : String(error)}`;
  }
}

/** What is looked at, and the remedy when its failure does not say one. */
interface Check {
  readonly what: string;
  readonly remedy: string;
  readonly look: () => unknown;
}

export const doctorCommand: Command = {
  name: "doctor",
  summary: "Check what a server needs on this machine: a line each, with a remedy for what is wrong.",
  usage: "[--url URL]",
  flags: serverFlags,
  async run(input) {
    let isWell = true;
    for (const { what, remedy, look } of await checksFor(input)) {
      try {
        const found = await look();
        console.log(`ok    ${what}${typeof found === "string" ? `: ${found}` : ""}`);
      } catch (error) {
        isWell = false;
        const reason = error instanceof Error ? error.message.split("\n")[0] : String(error);
        console.log(`wrong ${what}: ${reason} — ${remedy}`);
      }
    }
    return isWell ? 0 : 1;
  },
};

/** What starts a server is loaded for this command alone: the others begin sooner without it. */
async function checksFor(input: CommandInput): Promise<readonly Check[]> {
  const { checkDevices, checkMemory, checkModels, checkSettings, trySearchModels } = await import(
    "../../compose/preflight.ts"
  );
  const { openText } = await import("../../compose/text.ts");
  const { withCachedModel } = await import("../../compose/hub-models.ts");
  const { parseConfig } = await import("../../config.ts");
  const env = () => withSecrets(process.env);
  const config = () => parseConfig(env());
  // A model that the hub's cache does not have is told of where the model is looked for, and hides nothing else.
  const served = () => parseConfig(withCachedModel(env()));
  const table = "see the settings in docs/operations.md, or spangate serve --help";
  return [
    { what: "Bun", remedy: "install Bun 1.4 or newer", look: bunVersion },
    { what: "settings", remedy: table, look: () => checkSettings(config(), env()) },
    {
      what: "model",
      remedy: "name a folder in the Hugging Face layout with SPANGATE_MODEL, or leave it out for the demo model",
      look: () => {
        checkModels(served(), withCachedModel(env()));
        openText(served());
        return served().modelDir;
      },
    },
    {
      what: "search models",
      remedy: "name folders of ONNX models with SPANGATE_EMBEDDING_MODEL and SPANGATE_RERANK_MODEL, or leave them out",
      look: () => trySearchModels(served(), env()),
    },
    {
      what: "devices",
      remedy: "install the NVIDIA driver and the CUDA toolkit, or leave SPANGATE_DEVICES out for the CPU",
      look: async () => {
        await checkDevices(config(), env());
        return config().devices.join(", ");
      },
    },
    {
      what: "memory",
      remedy: "take a smaller model, or more memory",
      look: async () => {
        const gpus = await checkDevices(config(), env());
        const model = checkModels(served(), withCachedModel(env()));
        return (await checkMemory(served(), env(), model, gpus)).join("; ");
      },
    },
    {
      what: "kernels",
      remedy: "install a C++17 compiler (g++ or clang++)",
      look: () => (config().devices.includes("cpu") ? buildCpuKernels() : "not needed on a GPU"),
    },
    {
      what: "data folder",
      remedy: "name a folder of your own with SPANGATE_DATA",
      look: () => writableFolder(config().dataDir),
    },
    { what: "server", remedy: 'start one with "spangate serve --dev"', look: () => serverAt(urlOf(input)) },
    {
      what: "API key",
      remedy: 'set SPANGATE_API_KEY to a key of "spangate key create", or use "spangate serve --dev"',
      look: async () => `the server takes it and serves ${await firstModelId(clientOf(input))}`,
    },
  ];
}

function clientOf(input: CommandInput): HttpClient {
  try {
    return connect(input);
  } catch (cause) {
    throw new Error("there is none", { cause });
  }
}

function bunVersion(): string {
  if (Bun.semver.satisfies(Bun.version, ">=1.4.0")) return Bun.version;
  throw new Error(`this is ${Bun.version}`);
}

async function serverAt(url: string): Promise<string> {
  const found = await readinessOf(url);
  if (found === undefined) throw new Error(`none answers at ${url}`);
  return `${url} is ${found.status.replace("_", " ")}`;
}

/** A folder that is still to be made can be, when the nearest one above it can be written to. */
function writableFolder(path: string): string {
  let there = path;
  while (!existsSync(there)) there = dirname(there);
  try {
    accessSync(there, constants.W_OK | constants.X_OK);
  } catch {
    throw new Error(`${there} cannot be written to`);
  }
  return path;
}
