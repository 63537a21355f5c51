/** What a server needs on this machine, looked at piece by piece. */
import { accessSync, constants, existsSync } from "node:fs";
import { dirname } from "node:path";
import { buildCpuKernels } from "../../../kernels/build.ts";
import { commandLine } from "../../../places/places.ts";
import { withSecrets } from "../../process/secret-settings.ts";
import { remedyWithoutServer } from "../support/client.ts";
import { type Command, type CommandInput, serverFlags } from "../support/command.ts";
import { connect, isServerNamed, urlOf } from "../support/connect.ts";
import { firstModelId } from "../support/operations.ts";
import { readinessOf } from "./status.ts";

interface Check {
  readonly what: string;
  /** What to do when it fails and the failure does not say. */
  readonly remedy: string;
  /** Names of checks without which this one cannot tell anything. */
  readonly needs: readonly string[];
  readonly look: () => unknown;
}

/** Thrown for what is not there and need not be. */
class Absent extends Error {}

export const doctorCommand: Command = {
  name: "doctor",
  summary: "Check what a server needs on this machine: a line each, with a remedy for what is wrong.",
  usage: "[--url URL]",
  flags: serverFlags,
  async run(input) {
    const wrong = new Set<string>();
    const unknown = new Set<string>();
    for (const { what, remedy, needs, look } of await checksFor(input)) {
      const missing = needs.find((need) => wrong.has(need) || unknown.has(need));
      if (missing !== undefined) {
        unknown.add(what);
        console.log(`?     ${what}: not looked at without ${missing}`);
        continue;
      }
      try {
        const found = await look();
        console.log(`ok    ${what}${typeof found === "string" ? `: ${found}` : ""}`);
      } catch (error) {
        const isWrong = !(error instanceof Absent);
        (isWrong ? wrong : unknown).add(what);
        const reason = error instanceof Error ? error.message.split("\n")[0] : String(error);
        console.log(`${isWrong ? "wrong" : "none "} ${what}: ${reason} — ${remedy}`);
      }
    }
    return wrong.size === 0 ? 0 : 1;
  },
};

async function checksFor(input: CommandInput): Promise<readonly Check[]> {
  return [
    { what: "Bun", remedy: "install Bun 1.4 or newer", needs: [], look: bunVersion },
    ...(await startChecks()),
    {
      what: "server",
      remedy: remedyWithoutServer(urlOf(input)),
      needs: [],
      look: () => serverAt(urlOf(input), isServerNamed(input)),
    },
    {
      what: "API key",
      remedy: `set SPANGATE_API_KEY to a key of "${commandLine} key create", or use "${commandLine} serve --dev"`,
      needs: ["server"],
      look: async () => `the server takes it and serves ${await firstModelId(connect(input))}`,
    },
  ];
}

/** What starts a server is loaded for this command alone: the others begin sooner without it. */
async function startChecks(): Promise<readonly Check[]> {
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
  const needs = ["settings"];
  return [
    {
      what: "settings",
      remedy: `see the settings in docs/operations.md, or ${commandLine} serve --help`,
      needs: [],
      look: () => checkSettings(config(), env()),
    },
    {
      what: "model",
      remedy: "name a folder in the Hugging Face layout with SPANGATE_MODEL, or leave it out for the demo model",
      needs,
      look: () => {
        checkModels(served(), withCachedModel(env()));
        openText(served());
        return served().modelDir;
      },
    },
    {
      what: "search models",
      remedy: "name folders of ONNX models with SPANGATE_EMBEDDING_MODEL and SPANGATE_RERANK_MODEL, or leave them out",
      needs: [...needs, "model"],
      look: () => trySearchModels(served(), env()),
    },
    {
      what: "devices",
      remedy: "install the NVIDIA driver and the CUDA toolkit, or leave SPANGATE_DEVICES out for the CPU",
      needs,
      look: async () => {
        await checkDevices(config(), env());
        return config().devices.join(", ");
      },
    },
    {
      what: "memory",
      remedy: "take a smaller model, or more memory",
      needs: [...needs, "model", "devices"],
      look: async () => {
        const gpus = await checkDevices(config(), env());
        const model = checkModels(served(), withCachedModel(env()));
        return (await checkMemory(served(), env(), model, gpus)).join("; ");
      },
    },
    {
      what: "kernels",
      remedy: "install a C++17 compiler (g++ or clang++)",
      needs,
      look: () => (config().devices.includes("cpu") ? buildCpuKernels() : "not needed on a GPU"),
    },
    {
      what: "data folder",
      remedy: "name a folder of your own with SPANGATE_DATA",
      needs,
      look: () => writableFolder(config().dataDir),
    },
  ];
}

function bunVersion(): string {
  if (Bun.semver.satisfies(Bun.version, ">=1.4.0")) return Bun.version;
  throw new Error(`this is ${Bun.version}`);
}

/** @param isNamed whether somebody said that a server is there; where nobody did, none has to be */
async function serverAt(url: string, isNamed: boolean): Promise<string> {
  const found = await readinessOf(url);
  if (found !== undefined) return `${url} is ${found.status.replace("_", " ")}`;
  const reason = `none answers at ${url}`;
  throw isNamed ? new Error(reason) : new Absent(reason);
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
