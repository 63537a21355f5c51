/** What the clients of the suite share: one server with the demo model, tenants of their own, and a count of what they send. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Hold, holdUntil } from "../../gateway/base/hold.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

export class Suite {
  #server: TestServer | undefined;

  readonly #dataDir = mkdtempSync(join(tmpdir(), "spangate-conformance-"));

  async start(): Promise<void> {
    this.#server = await startTestServer({ dataDir: this.#dataDir });
  }

  async stop(): Promise<void> {
    await this.#server?.[Symbol.asyncDispose]();
    rmSync(this.#dataDir, { recursive: true, force: true });
  }

  /** As an operator stops it; resolves when it has ended. */
  async stopServer(): Promise<void> {
    await this.server.process.stop();
  }

  /** At the same place, with what it has kept. */
  async startAgain(): Promise<void> {
    const env = { SPANGATE_PORT: new URL(this.url).port };
    this.#server = await startTestServer({ dataDir: this.#dataDir, env });
  }

  get server(): TestServer {
    if (this.#server === undefined) throw new Error("the server does not run");
    return this.#server;
  }

  get url(): string {
    return this.server.url;
  }

  get model(): string {
    return this.server.model;
  }

  tenant(name: string): Promise<TestTenant> {
    return this.server.tenant(name);
  }

  /** Limits of a tenant, as an operator sets them. */
  async limit(tenant: TestTenant, limits: Readonly<Record<string, number | null>>): Promise<void> {
    await this.server.admin.json("PUT", `/admin/v1/tenants/${tenant.id}/limits`, limits);
  }

  /**
   * A request that is under way until the hold ends, and takes no processor time meanwhile: the workers are
   * stopped as they are. What a client is told of it is the gateway's to say.
   */
  async occupyStill(tenant: Pick<TestTenant, "apiKey">): Promise<Hold> {
    const release = await this.occupy(tenant);
    const workers = await this.server.admin.json<{ data: { pid: number }[] }>("GET", "/admin/v1/workers");
    const signal = (name: "SIGSTOP" | "SIGCONT") => {
      for (const { pid } of workers.data) process.kill(pid, name);
    };
    signal("SIGSTOP");
    return holdUntil(() => {
      signal("SIGCONT");
      release();
    });
  }

  /** A request that runs until what this gives is called. */
  async occupy({ apiKey }: Pick<TestTenant, "apiKey">): Promise<() => void> {
    const controller = new AbortController();
    const messages = [{ role: "user", content: "Names:" }];
    const body = { model: this.model, messages, max_tokens: 20_000, ignore_eos: true, stream: true };
    const response = await fetch(`${this.url}/v1/chat/completions`, {
      method: "POST",
      headers: { authorization: `Bearer ${apiKey}`, "content-type": "application/json" },
      body: JSON.stringify(body),
      signal: controller.signal,
    });
    if (response.status !== 200) throw new Error(`a request that should run was answered ${response.status}`);
    return () => controller.abort();
  }

  /** Requests that workers have at the moment, of all tenants. */
  async inFlight(): Promise<number> {
    const headers = { authorization: `Bearer ${this.server.adminKey}` };
    const metrics = await (await fetch(`${this.url}/metrics`, { headers })).text();
    return Number(/^spangate_requests_in_flight(?:\{[^}]*\})? (\d+)/m.exec(metrics)?.[1] ?? Number.NaN);
  }

  /** @throws Error when something still runs after some seconds: a client that went away was not noticed */
  async untilNothingRuns(): Promise<void> {
    const deadlineMs = performance.now() + 20_000;
    while ((await this.inFlight()) > 0) {
      if (performance.now() > deadlineMs) throw new Error("requests of clients that went away still run");
      await Bun.sleep(20);
    }
  }
}

/** What the demo model can read, and what it is asked. */
export const texts = {
  "holt.md": "- Mira Holt works as a baker.\n- The extension of Mira Holt is 4821.",
  "vale.md": "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057.",
  "quill.md": "- Ada Quill is in the research team.\n- The extension of Ada Quill is 7719.",
} as const;
export const documents = Object.values(texts).map((text) => ({ text }));
export const question = "What is the extension of Jon Vale?";
export const answer = "3057";
/** The documents in the words of a client that knows no others than those of the conversation. */
export const prompt = `${Object.values(texts).join("\n")}\n\n${question}`;

/** A format that no answer ends before thousands of tokens: what is aborted in it has surely not ended by itself. */
export const longSchema = {
  type: "object",
  properties: { numbers: { type: "array", items: { type: "integer" }, minItems: 900 } },
  required: ["numbers"],
  additionalProperties: false,
} as const;

/** JSON that any model writes, since the format leaves it nothing else. */
export const choiceSchema = {
  type: "object",
  properties: { answer: { type: "string", enum: ["yes", "no"] }, count: { type: "integer", minimum: 0, maximum: 9 } },
  required: ["answer", "count"],
  additionalProperties: false,
} as const;

export async function thrownBy(call: PromiseLike<unknown>): Promise<unknown> {
  try {
    await call;
  } catch (error) {
    return error;
  }
  throw new Error("the call succeeded");
}

/** Counts what a client sends, so that its retries can be seen. */
export function countingFetch(): { readonly fetch: typeof fetch; readonly statuses: number[] } {
  const statuses: number[] = [];
  const counted = async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const response = await fetch(input, init);
    statuses.push(response.status);
    return response;
  };
  return { fetch: Object.assign(counted, { preconnect: fetch.preconnect }), statuses };
}
