import { type Command, serverFlags, UsageError } from "../support/command.ts";
import { connect } from "../support/connect.ts";
import { listAll, type Tenant } from "../support/operations.ts";

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
