/** Which key a command speaks with, where several are at hand. */
import { afterEach, expect, test } from "bun:test";
import type { CommandInput } from "../../../gateway/cli/support/command.ts";
import { serverOf } from "../../../gateway/cli/support/connect.ts";

const names = ["SPANGATE_API_KEY", "SPANGATE_ADMIN_KEY"] as const;
const before = names.map((name) => process.env[name]);
afterEach(() => {
  for (const [index, name] of names.entries()) {
    const value = before[index];
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
});

function keyOf(role: "tenant" | "platform", env: Readonly<Record<string, string>>, flag?: string): string {
  for (const name of names) delete process.env[name];
  Object.assign(process.env, env);
  const text = (name: string): string | undefined => (name === "api-key" ? flag : undefined);
  return serverOf({ text } as CommandInput, role).apiKey;
}

const both = { SPANGATE_API_KEY: "sk-tenant", SPANGATE_ADMIN_KEY: "sk-admin" };

test("with both keys set, operators' commands take the admin key and all others the tenant's", () => {
  expect(keyOf("platform", both)).toBe("sk-admin");
  expect(keyOf("tenant", both)).toBe("sk-tenant");
});

test("a tenant's administrator needs no admin key; a flag goes before both", () => {
  expect(keyOf("platform", { SPANGATE_API_KEY: "sk-tenant" })).toBe("sk-tenant");
  expect(keyOf("platform", both, "sk-flag")).toBe("sk-flag");
  expect(() => keyOf("tenant", { SPANGATE_ADMIN_KEY: "sk-admin" })).toThrow("set SPANGATE_API_KEY");
  expect(() => keyOf("platform", {})).toThrow("set SPANGATE_ADMIN_KEY");
});
