import { resolve } from "node:path";
import type { HttpClient } from "../support/client.ts";
import { type Command, CommandError, type CommandInput, serverFlags, UsageError } from "../support/command.ts";
import { connect, requiredText } from "../support/connect.ts";
import {
  type ApiKey,
  listAll,
  type MintedKey,
  type Tenant,
  type TenantLimits,
  type UsageDay,
} from "../support/operations.ts";
import { textTable } from "../support/text-table.ts";

export const tenantCommand: Command = {
  name: "tenant",
  summary: "Create, list and delete tenants, and give them budgets of tokens (needs a platform:admin key).",
  usage: "create NAME | list | delete ID | budget ID [--day TOKENS] [--month TOKENS]",
  flags: {
    ...serverFlags,
    day: { type: "string", value: "TOKENS", description: 'For budget: tokens of a day (UTC), or "none".' },
    month: { type: "string", value: "TOKENS", description: 'For budget: tokens of a month (UTC), or "none".' },
  },
  async run(input) {
    const [action, argument, extra] = input.positionals;
    if (extra !== undefined) throw new UsageError(`unexpected argument "${extra}"`);
    // Made by what needs it: wrong usage is told without a key.
    const client = () => connect(input, "platform");
    if (action === "create" && argument) {
      const tenant = await client().json<Tenant>("POST", "/admin/v1/tenants", { name: argument });
      console.log(tenant.id);
    } else if (action === "list" && argument === undefined) {
      for (const tenant of await listAll<Tenant>(client(), "/admin/v1/tenants"))
        console.log(`${tenant.id}  ${tenant.name}`);
    } else if (action === "delete" && argument) {
      await client().json("DELETE", `/admin/v1/tenants/${encodeURIComponent(argument)}`);
      console.log(`deleted ${argument}`);
    } else if (action === "budget" && argument) {
      await setBudget(input, client(), `/admin/v1/tenants/${encodeURIComponent(argument)}/limits`);
    } else throw new UsageError("say one of: create NAME, list, delete ID, budget ID");
    return 0;
  },
};

export const usageCommand: Command = {
  name: "usage",
  summary:
    "Show each tenant's tokens by day, the latest day first: how many were found in the cache, how many computed.",
  usage: "[--tenant ID]",
  flags: { ...serverFlags, tenant: { type: "string", value: "ID", description: "Only this tenant's." } },
  async run(input) {
    const client = connect(input, "platform");
    const tenant = input.text("tenant");
    const wanted = tenant === undefined ? "" : `?tenant_id=${encodeURIComponent(tenant)}`;
    const days = await listAll<UsageDay>(client, `/admin/v1/usage${wanted}`);
    const rows = days.map((day) => [
      ...[day.day, day.tenant_id, day.requests],
      ...[day.prompt_tokens, day.cached_tokens, day.completion_tokens, day.computed_tokens],
    ]);
    const header = ["day", "tenant", "requests", "prompt", "cached", "answers", "computed"];
    console.log(
      textTable(
        header,
        rows.map((row) => row.map(String)),
      ),
    );
    return 0;
  },
};

/** Sets the budgets that are given, leaves all other limits as they are, and prints how the budgets stand. */
async function setBudget(input: CommandInput, client: HttpClient, path: string): Promise<void> {
  const wanted = { tokens_per_day: budgetOf(input, "day"), tokens_per_month: budgetOf(input, "month") };
  let limits = await client.json<TenantLimits>("GET", path);
  if (Object.values(wanted).some((value) => value !== undefined)) {
    const { id, object, storage, budgets, ...set } = limits;
    // A budget that was not given stays as it is, too: JSON has no field for what is undefined.
    const given = JSON.parse(JSON.stringify(wanted)) as object;
    limits = await client.json<TenantLimits>("PUT", path, { ...set, ...given });
  }
  for (const [period, { limit, used, resets_at }] of Object.entries(limits.budgets)) {
    const next = new Date(resets_at * 1000).toISOString().slice(0, 16);
    console.log(`${period}: ${used} of ${limit ?? "any number of"} tokens used; the next ${period} begins at ${next}Z`);
  }
}

/** undefined: not given; null: as many as come. */
function budgetOf(input: CommandInput, flag: "day" | "month"): number | null | undefined {
  if (input.text(flag) === "none") return null;
  return input.integer(flag, { min: 1, max: Number.MAX_SAFE_INTEGER });
}

const defaultScopes = "inference,corpus:read,corpus:write,corpus:prepare";

export const keyCommand: Command = {
  name: "key",
  summary: "Make, list and revoke a tenant's API keys; make a new admin key with the server stopped.",
  usage: "create --tenant ID [--expires 30d] | list --tenant ID | revoke KEY_ID | reset-admin [--data DIR]",
  flags: {
    ...serverFlags,
    data: {
      type: "string",
      value: "DIR",
      description: "For reset-admin: the data folder (else .spangate).",
      env: "SPANGATE_DATA",
    },
    tenant: { type: "string", short: "t", value: "ID", description: "The tenant." },
    scopes: { type: "string", value: "LIST", description: `Comma-separated (${defaultScopes}).` },
    name: { type: "string", value: "NAME", description: "A name to tell the key by." },
    expires: {
      type: "string",
      value: "TIME",
      description: "For create: how long the key is valid, as in 12h, 30d or 52w (until it is revoked).",
    },
  },
  async run(input) {
    const [action, argument] = input.positionals;
    if (action === "reset-admin" && argument === undefined) return await resetAdmin(input);
    const client = () => connect(input, "platform");
    if (action === "revoke" && argument) {
      await client().json("DELETE", `/admin/v1/keys/${encodeURIComponent(argument)}`);
      console.log(`revoked ${argument}`);
      return 0;
    }
    if (argument !== undefined || (action !== "create" && action !== "list")) {
      throw new UsageError("say one of: create --tenant ID, list --tenant ID, revoke KEY_ID, reset-admin");
    }
    const path = `/admin/v1/tenants/${encodeURIComponent(requiredText(input, "tenant"))}/keys`;
    if (action === "list") {
      for (const key of await listAll<ApiKey>(client(), path)) {
        console.log([key.id, key.name, key.scopes.join(","), ...validityOf(key)].join("  "));
      }
      return 0;
    }
    const scopes = (input.text("scopes") ?? defaultScopes).split(",");
    const name = input.text("name");
    const expires = secondsOf(input.text("expires"));
    const fields = { ...(name ? { name } : {}), ...(expires === undefined ? {} : { expires_in_seconds: expires }) };
    const made = await client().json<MintedKey>("POST", path, { scopes, ...fields });
    console.log(made.key);
    if (made.expires_at !== null) console.error(`It expires at ${timeOf(made.expires_at)}.`);
    return 0;
  },
};

const timeOf = (unixS: number): string => `${new Date(unixS * 1000).toISOString().slice(0, 16)}Z`;

/** Nothing for a key that is valid until somebody revokes it. */
function validityOf({ revoked_at, expires_at }: ApiKey): readonly string[] {
  if (revoked_at !== null) return [`revoked at ${timeOf(revoked_at)}`];
  if (expires_at === null) return [];
  return [`${expires_at * 1000 <= Date.now() ? "expired" : "expires"} at ${timeOf(expires_at)}`];
}

const secondsIn: Readonly<Record<string, number>> = { h: 3_600, d: 86_400, w: 604_800 };

/** `30d` as seconds. The server says how long a key may be valid at most. @throws UsageError */
function secondsOf(given: string | undefined): number | undefined {
  if (given === undefined) return undefined;
  const [, count = "", unit = ""] = /^([1-9]\d{0,8})([hdw])$/.exec(given) ?? [];
  const seconds = Number(count) * (secondsIn[unit] ?? 0);
  if (seconds > 0) return seconds;
  throw new UsageError(`--expires ${given}: say hours, days or weeks, as in 12h, 30d or 52w`);
}

/** For an operator who has lost the admin key: whoever has the data folder may make a new one. */
async function resetAdmin(input: CommandInput): Promise<number> {
  const { resetAdminKey } = await import("../../compose/folder-owner.ts");
  const dataDir = resolve(input.text("data") ?? ".spangate");
  try {
    console.log(resetAdminKey(dataDir));
  } catch (error) {
    throw new CommandError(error instanceof Error ? error.message : String(error), { cause: error });
  }
  console.error("This is the platform admin key now, shown this once; the ones before are revoked.");
  return 0;
}
