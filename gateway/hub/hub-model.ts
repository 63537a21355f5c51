/** Names of models on the Hugging Face hub, and why one cannot be had. */

/** Why a model cannot be had from the hub: one sentence for the operator. */
export class HubError extends Error {}

export interface HubModel {
  /** `Qwen/Qwen3-8B`: an organisation and a name. */
  readonly id: string;
  /** A branch, a tag or a commit. */
  readonly revision: string;
}

const part = "[A-Za-z0-9](?:[\\w.-]*[\\w])?";
const namePattern = new RegExp(`^(${part}/${part})(?:@(.+))?$`);
/** The hub's own bounds on a name, and a bound for names of branches, which become files of the cache. */
const [maxIdChars, maxRevisionChars] = [96, 200];
const revisionPattern = /^\w[\w.-]*(?:\/\w[\w.-]*)*$/;
/** In the cache `--` stands for the slash, so the hub has no name with it. */
const refused = /--|\.\./;
export const commitPattern = /^[0-9a-f]{40}$/;

/** @returns undefined: it is no name of the hub's, such as a path with more or fewer steps */
export function parseHubModel(given: string): HubModel | undefined {
  const [, id, revision = "main"] = namePattern.exec(given) ?? [];
  if (id === undefined || id.length > maxIdChars || refused.test(id)) return undefined;
  if (revision.length > maxRevisionChars || !revisionPattern.test(revision) || revision.includes(".."))
    return undefined;
  return { id, revision };
}

/** As an operator writes it. */
export const hubModelText = ({ id, revision }: HubModel): string => (revision === "main" ? id : `${id}@${revision}`);

/** 16400000000 -> "16.4 GB", in the units that the hub shows. */
export function sizeText(bytes: number): string {
  const power = Math.min(4, Math.floor(Math.log10(Math.max(1, bytes)) / 3));
  return power === 0
    ? `${bytes} bytes`
    : `${(bytes / 1000 ** power).toFixed(1)} ${["", "kB", "MB", "GB", "TB"][power]}`;
}
