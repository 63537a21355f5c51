/** The option of benchmarks that says how KV is held. */
import { CommandError } from "../../../gateway/cli/support/command.ts";

export const kvOption = "float32 | float16 | mx8";

/** The worker's settings for it; undefined: those of the environment. */
export function kvSettings(kv: string | undefined): Readonly<Record<string, string>> {
  if (kv === undefined) return {};
  if (kv === "mx8") return { SPANGATE_KV_CODEC: "mx8" };
  if (kv === "float32" || kv === "float16") return { SPANGATE_KV_TYPE: kv };
  throw new CommandError(`--kv is ${kvOption.replaceAll(" |", ",")}, not "${kv}"`);
}
