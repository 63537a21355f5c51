/** Whether the server answers, and how it is. */
import { remedyWithoutServer } from "../support/client.ts";
import { type Command, type CommandInput, serverFlags } from "../support/command.ts";
import { connect, urlOf } from "../support/connect.ts";
import { firstModelId } from "../support/operations.ts";

/** What `/ready` says. */
interface Readiness {
  readonly status: string;
  readonly workers: readonly { readonly id: string; readonly state: string }[];
}

/** @returns undefined: no server answers there */
export async function readinessOf(url: string): Promise<Readiness | undefined> {
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
      console.log(`${url}: no server answers; ${remedyWithoutServer(url)}`);
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
