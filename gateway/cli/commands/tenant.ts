import { resolve } from "node:path";
import { type Command, CommandError, type CommandInput, serverFlags, UsageError } from "../support/command.ts";
import { connect, requiredText } from "../support/connect.ts";
import { type ApiKey, listAll, type MintedKey, type Tenant } from "../support/operations.ts";

export const tenantCommand: Command = {
  name: "tenant",
  summary: "Create, list and delete tenants (needs a platform:admin key).",
  usage: "create NAME | list | delete ID",
  flags: serverFlags,
  async run(input) {
    const [action, argument, extra] = input.positionals;
    if (extra !== undefined) throw new UsageError(`unexpected argument "${extra}"`);
    const client = connect(input, "platform");
    if (action === "create" && argument) {
      const tenant = await client.json<Tenant>("POST", "/admin/v1/tenants", { name: argument });
      console.log(tenant.id);
    } else if (action === "list" && argument === undefined) {
      for (const tenant of await listAll<Tenant>(client, "/admin/v1/tenants"))
        console.log(`${tenant.id}  ${tenant.name}`);
    } else if (action === "delete" && argument) {
      await client.json("DELETE", `/admin/v1/tenants/${encodeURIComponent(argument)}`);
      console.log(`deleted ${argument}`);
    } else throw new UsageError("say one of: create NAME, list, delete ID");
    return 0;
  },
};

const defaultScopes = "inference,corpus:read,corpus:write,corpus:prepare";

export const keyCommand: Command = {
  name: "key",
  summary: "Make, list and revoke a tenant's API keys; make a new admin key with the server stopped.",
  usage: "create --tenant ID | list --tenant ID | revoke KEY_ID | reset-admin [--data DIR]",
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
  },
  async run(input) {
    const [action, argument] = input.positionals;
    if (action === "reset-admin" && argument === undefined) return await resetAdmin(input);
    const client = connect(input, "platform");
    if (action === "revoke" && argument) {
      await client.json("DELETE", `/admin/v1/keys/${encodeURIComponent(argument)}`);
      console.log(`revoked ${argument}`);
      return 0;
    }
    if (argument !== undefined || (action !== "create" && action !== "list")) {
      throw new UsageError("say one of: create --tenant ID, list --tenant ID, revoke KEY_ID, reset-admin");
    }
    const path = `/admin/v1/tenants/${encodeURIComponent(requiredText(input, "tenant"))}/keys`;
    if (action === "list") {
      for (const key of await listAll<ApiKey>(client, path)) {
        console.log([key.id, key.name, key.scopes.join(",")].join("  "));
      }
      return 0;
    }
    const scopes = (input.text("scopes") ?? defaultScopes).split(",");
    const name = input.text("name");
    const made = await client.json<MintedKey>("POST", path, { scopes, ...(name ? { name } : {}) });
    console.log(made.key);
    return 0;
  },
};

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
