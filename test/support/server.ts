/** A server for a benchmark or a test: a data folder of its own, tenants and keys on demand, ended with the block. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { HttpClient } from "../../gateway/cli/support/client.ts";
import { firstModelId, type MintedKey, type Tenant } from "../../gateway/cli/support/operations.ts";
import { type ServerProcess, startServer } from "../../gateway/cli/support/server-process.ts";
import { oneLayerFolder } from "./one-layer.ts";

export interface TestTenant {
  readonly id: string;
  readonly apiKey: string;
  readonly client: HttpClient;
}

export interface TestServer extends AsyncDisposable {
  readonly process: ServerProcess;
  readonly url: string;
  readonly dataDir: string;
  readonly admin: HttpClient;
  readonly adminKey: string;
  readonly model: string;
  /** A new tenant and a client with its key. */
  tenant(name: string): Promise<TestTenant>;
}

const tenantScopes = ["inference", "corpus:read", "corpus:write", "corpus:prepare"];

export interface TestServerOptions {
  readonly env?: Readonly<Record<string, string>>;
  /** The demo model when absent, which knows its documents and is what benchmarks measure. */
  readonly model?: "one-layer";
  /** Kept as it is when given (to start again on the same data); else made and removed. */
  readonly dataDir?: string;
  readonly onLog?: (text: string) => void;
}

export async function startTestServer(options: TestServerOptions = {}): Promise<TestServer> {
  const dataDir = options.dataDir ?? mkdtempSync(join(tmpdir(), "spangate-test-"));
  const adminKey = "sk-admin-key-of-a-server-that-only-this-test-talks-to";
  // Tests and benchmarks run on another path when their environment names one.
  const { SPANGATE_DENSE = "", SPANGATE_ISA = "" } = process.env;
  const env = {
    SPANGATE_DENSE,
    SPANGATE_ISA,
    SPANGATE_LOG: "warn",
    SPANGATE_PORT: "0",
    ...(options.model === "one-layer" && { SPANGATE_MODEL: oneLayerFolder() }),
    ...options.env,
    SPANGATE_DATA: dataDir,
    SPANGATE_ADMIN_KEY: adminKey,
  };
  const server = await startServer({ env, ...(options.onLog ? { onLog: options.onLog } : {}) });
  const admin = new HttpClient({ url: server.url, apiKey: adminKey });
  const makeTenant = async (name: string): Promise<TestTenant> => {
    const { id } = await admin.json<Tenant>("POST", "/admin/v1/tenants", { name });
    const { key = "" } = await admin.json<MintedKey>("POST", `/admin/v1/tenants/${id}/keys`, { scopes: tenantScopes });
    return { id, apiKey: key, client: new HttpClient({ url: server.url, apiKey: key }) };
  };
  const { client } = await makeTenant("first");
  return {
    process: server,
    url: server.url,
    dataDir,
    admin,
    adminKey,
    model: await firstModelId(client),
    tenant: makeTenant,
    [Symbol.asyncDispose]: async () => {
      await server.stop();
      if (options.dataDir === undefined) rmSync(dataDir, { recursive: true, force: true });
    },
  };
}
