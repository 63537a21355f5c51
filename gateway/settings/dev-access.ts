/** What `serve --dev` leaves in the data folder for the command line: where the server is, a key of its tenant, and one that administers the platform. */
import { chmodSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";

export interface DevAccess {
  readonly url: string;
  readonly apiKey: string;
  /** Absent after a start without --dev, which revokes it. */
  readonly adminKey?: string | undefined;
}

export const devAccessPath = (dataDir: string): string => join(dataDir, "dev-access.json");

/** @returns undefined: there is none that can be read */
export function readDevAccess(dataDir: string): DevAccess | undefined {
  try {
    const found: unknown = JSON.parse(readFileSync(devAccessPath(dataDir), "utf8"));
    if (typeof found !== "object" || found === null || !("url" in found) || !("api_key" in found)) return undefined;
    const { url, api_key: apiKey } = found;
    if (typeof url !== "string" || typeof apiKey !== "string") return undefined;
    const adminKey = "admin_key" in found && typeof found.admin_key === "string" ? found.admin_key : undefined;
    return { url, apiKey, adminKey };
  } catch {
    return undefined;
  }
}

/** Writes the file for its owner alone, whole or not at all. */
export function writeDevAccess(dataDir: string, { url, apiKey, adminKey }: DevAccess): void {
  const path = devAccessPath(dataDir);
  const aside = `${path}.tmp`;
  writeFileSync(aside, `${JSON.stringify({ url, api_key: apiKey, admin_key: adminKey })}\n`, { mode: 0o600 });
  // A file that was left by a start that was killed here keeps the mode it had.
  chmodSync(aside, 0o600);
  renameSync(aside, path);
}
