/** Models of the Hugging Face hub: loaded by a command of its own, or by the first start that names one. */
import { withSecrets } from "../../process/secret-settings.ts";
import { type Command, CommandError, UsageError } from "../support/command.ts";
import { Progress } from "../support/progress.ts";

export const pullCommand: Command = {
  name: "pull",
  summary: "Load a model from the Hugging Face hub, at the newest commit; run again, it goes on where it was.",
  usage: "ORG/MODEL[@REVISION]",
  flags: {},
  async run({ positionals: [given, extra] }) {
    if (given === undefined) throw new UsageError("say which model, as in Qwen/Qwen3-0.6B");
    if (extra !== undefined) throw new UsageError(`unexpected argument "${extra}"`);
    const { hubModelText, parseHubModel, sizeText } = await import("../../hub/hub-model.ts");
    const model = parseHubModel(given);
    if (model === undefined) throw new UsageError(`"${given}" is no name of a model, such as Qwen/Qwen3-0.6B`);
    // Loaded for this command alone: the others begin sooner without it.
    const { pullNewest } = await import("../../compose/hub-models.ts");
    const name = hubModelText(model);
    const { folder, commit, bytes } = await shown(name, (options) => pullNewest(model, environment(), options));
    console.log(`${name} at ${commit.slice(0, 12)}, ${sizeText(bytes)}, is in ${folder}`);
    console.log(`serve it with: spangate serve --model ${name}`);
    return 0;
  },
};

/** Where SPANGATE_MODEL names a model of the hub, puts its folder in that place, and loads it first if need be. */
export async function loadServedModel(): Promise<void> {
  const { loadNamedModel, namedModel } = await import("../../compose/hub-models.ts");
  const { hubModelText } = await import("../../hub/hub-model.ts");
  const model = namedModel(process.env);
  if (model === undefined) return;
  const load = (options: ShownOptions) => loadNamedModel(model, environment(), options);
  process.env.SPANGATE_MODEL = await shown(hubModelText(model), load);
}

const environment = () => withSecrets(process.env);

interface ShownOptions {
  readonly onProgress: (doneBytes: number, totalBytes: number, note: string) => void;
  readonly onRetry: (problem: string, waitMs: number) => void;
}

const redrawMs = 100;

/** Runs a pull with its progress on standard error; Ctrl-C ends it. @throws CommandError */
async function shown<Result>(name: string, pull: (options: ShownOptions) => Promise<Result>): Promise<Result> {
  const progress = new Progress(`Loading ${name}, MB`);
  let drawnMs = Number.NEGATIVE_INFINITY;
  const onProgress = (done: number, total: number, note: string): void => {
    if (done < total && performance.now() - drawnMs < redrawMs) return;
    drawnMs = performance.now();
    progress.update(Math.floor(done / 1e6), Math.ceil(total / 1e6), note);
  };
  const onRetry = (problem: string, waitMs: number): void => {
    progress.finish();
    process.stderr.write(`${problem}; trying again in ${waitMs / 1_000} s\n`);
  };
  const onSignal = (): void => {
    progress.finish();
    process.stderr.write("stopped; the same command goes on where it was\n");
    process.exit(130);
  };
  process.once("SIGINT", onSignal);
  try {
    return await pull({ onProgress, onRetry });
  } catch (error) {
    throw new CommandError(error instanceof Error ? error.message : String(error), { cause: error });
  } finally {
    process.off("SIGINT", onSignal);
    progress.finish();
  }
}
