/** How the hub is reached and where its cache lies, from the variables that the hub's own tools read. */
import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join, resolve } from "node:path";
import { HubError } from "./hub-model.ts";

export interface HubSettings {
  /** Without a slash at its end. */
  readonly endpoint: string;
  readonly cacheDir: string;
  /** undefined: what everybody may have. */
  readonly token: string | undefined;
  /** The hub is not asked for anything. */
  readonly isOffline: boolean;
}

type Environment = Readonly<Record<string, string | undefined>>;

const isTrue = (value: string | undefined): boolean => /^(?:1|on|yes|true)$/i.test(value ?? "");

/** @throws HubError naming the variable */
export function hubSettings(env: Environment): HubSettings {
  const home = env.HOME ?? homedir();
  const pathOf = (path: string): string => resolve(path.replace(/^~(?=\/|$)/, home));
  const hubHome = pathOf(env.HF_HOME || join(env.XDG_CACHE_HOME || join(home, ".cache"), "huggingface"));
  const tokenFile = pathOf(env.HF_TOKEN_PATH || join(hubHome, "token"));
  return {
    endpoint: endpointOf(env),
    cacheDir: pathOf(env.HF_HUB_CACHE || env.HUGGINGFACE_HUB_CACHE || join(hubHome, "hub")),
    token: tokenOf(env, tokenFile),
    isOffline: isTrue(env.HF_HUB_OFFLINE) || isTrue(env.TRANSFORMERS_OFFLINE),
  };
}

function endpointOf({ HF_ENDPOINT: given }: Environment): string {
  const endpoint = (given || "https://huggingface.co").replace(/\/+$/, "");
  const url = URL.canParse(endpoint) ? new URL(endpoint) : undefined;
  if ((url?.protocol === "https:" || url?.protocol === "http:") && url.username === "" && url.search === "") {
    return endpoint;
  }
  throw new HubError("HF_ENDPOINT must be the address of a hub, such as https://huggingface.co");
}

/** The token of the environment, else the one that `hf auth login` has left. */
function tokenOf(env: Environment, file: string): string | undefined {
  const named = env.HF_TOKEN || env.HUGGING_FACE_HUB_TOKEN;
  const token = (named || (isTrue(env.HF_HUB_DISABLE_IMPLICIT_TOKEN) ? "" : textOf(file))).trim();
  if (token === "") return undefined;
  if (/^[\x21-\x7e]{1,1024}$/.test(token)) return token;
  throw new HubError(`${named ? "HF_TOKEN" : file} must hold a token: printable ASCII without spaces`);
}

function textOf(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return "";
  }
}
