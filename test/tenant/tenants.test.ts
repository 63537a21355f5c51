import { afterEach, beforeEach, describe, expect, setSystemTime, test } from "bun:test";
import { chmodSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TenantId } from "../../db/ids.ts";
import { type Db, openDb } from "../../db/open.ts";
import { type Principal, type Scope, scopes } from "../../gateway/tenant/principal.ts";
import { Salts } from "../../gateway/tenant/salts.ts";
import { loadServerSecret, ServerSecret } from "../../gateway/tenant/secret.ts";
import { TenantService } from "../../gateway/tenant/tenants.ts";
import { fc } from "../support/fast-check.ts";

const secret = new ServerSecret(new Uint8Array(32).fill(1));
let db: Db;
let tenants: TenantService;

beforeEach(() => {
  db = openDb(":memory:");
  tenants = new TenantService(db, secret);
});
afterEach(() => db.close());

const principal = (tenantId: TenantId | undefined, ...held: Scope[]): Principal => ({
  keyId: "key_test",
  tenantId,
  scopes: new Set(held),
});
const root = () => principal(undefined, ...scopes);

test("what is sealed opens for whom it was sealed alone, on this server alone", () => {
  const { sealer } = tenants;
  const [sealed, again] = [sealer.seal("their secret", "source_a"), sealer.seal("their secret", "source_a")];
  expect([sealer.open(sealed, "source_a"), sealed.equals(again)]).toEqual(["their secret", false]);
  expect(sealed.includes("their secret")).toBe(false);
  expect(() => sealer.open(sealed, "source_b")).toThrow();
  const elsewhere = new TenantService(db, new ServerSecret(new Uint8Array(32).fill(2)));
  expect(() => elsewhere.sealer.open(sealed, "source_a")).toThrow();
  const broken = Buffer.from(sealed);
  broken[broken.length - 1] = (broken.at(-1) ?? 0) ^ 1;
  expect(() => sealer.open(broken, "source_a")).toThrow();
});

describe("API keys", () => {
  test("are shown once, stored as a hash, and stand for tenant and scopes", () => {
    const { id } = tenants.create("acme");
    const { apiKey, row } = tenants.apiKeys.mint(root(), id, "ci", ["corpus:read", "inference"]);
    expect(apiKey).toMatch(/^sk-[A-Za-z0-9_-]{43}$/);
    expect(tenants.apiKeys.authenticate(apiKey)).toEqual({
      keyId: row.id,
      tenantId: id,
      scopes: new Set<Scope>(["inference", "corpus:read"]),
    });
    const stored = db.client.query("select * from api_keys").all();
    expect(JSON.stringify(stored)).not.toContain(apiKey);
    expect(Bun.inspect(tenants.apiKeys.list(id, { limit: 10, order: "asc" }))).not.toContain(apiKey);
  });

  test("nothing but the key itself authenticates", () => {
    const { apiKey } = tenants.apiKeys.mint(root(), tenants.create("acme").id, "", ["inference"]);
    const near = [
      apiKey.slice(0, -1),
      `${apiKey}x`,
      apiKey.toUpperCase(),
      ` ${apiKey}`,
      "",
      "sk-",
      "' or 1=1 --",
      "\0",
      apiKey.replace("sk-", ""),
    ];
    for (const wrong of near) expect(tenants.apiKeys.authenticate(wrong)).toBeUndefined();
    const other = new TenantService(db, new ServerSecret(new Uint8Array(32).fill(2)));
    expect(other.apiKeys.authenticate(apiKey)).toBeUndefined();
  });

  test("a key never mints a scope it lacks", () => {
    const { id } = tenants.create("acme");
    const someScopes = fc.subarray([...scopes]);
    fc.assert(
      fc.property(someScopes, fc.subarray([...scopes], { minLength: 1 }), (held, wanted) => {
        const mint = () => tenants.apiKeys.mint(principal(id, ...held), id, "", wanted);
        // Who administers the platform may let it be read.
        const gives = (scope: Scope): boolean =>
          held.includes(scope) || (scope === "platform:read" && held.includes("platform:admin"));
        if (wanted.every(gives)) {
          expect([...(tenants.apiKeys.valid(mint().apiKey)?.scopes ?? [])].sort()).toEqual([...wanted].sort());
        } else expect(mint).toThrow("cannot give scopes it lacks");
      }),
      { numRuns: 100 },
    );
  });

  test("revoked, tenant disabled, tenant deleted: unknown from the next request on", () => {
    const { id } = tenants.create("acme");
    const first = tenants.apiKeys.mint(root(), id, "", ["inference"]);
    const second = tenants.apiKeys.mint(root(), id, "", ["inference"]);
    tenants.apiKeys.revoke(root(), first.row.id);
    expect(tenants.apiKeys.authenticate(first.apiKey)).toBeUndefined();
    expect(tenants.apiKeys.authenticate(second.apiKey)).toBeDefined();
    tenants.update(id, { status: "disabled" });
    expect(tenants.apiKeys.authenticate(second.apiKey)).toBeUndefined();
    tenants.update(id, { status: "active" });
    expect(tenants.apiKeys.authenticate(second.apiKey)).toBeDefined();
    tenants.delete(id);
    expect(tenants.apiKeys.authenticate(second.apiKey)).toBeUndefined();
    expect(() => tenants.get(id)).toThrow("No such object.");
    expect(tenants.list({ limit: 10, order: "asc" }).rows).toEqual([]);
  });

  test("expired: refused from that moment on, for those who look it up by its id too", () => {
    const { id } = tenants.create("acme");
    const { apiKey, row } = tenants.apiKeys.mint(root(), id, "", ["inference"], 60);
    const expiresAt = row.expiresAt ?? 0;
    try {
      setSystemTime(new Date(expiresAt - 1));
      expect(tenants.apiKeys.authenticate(apiKey)).toMatchObject({ tenantId: id, expiresAt });
      expect(tenants.apiKeys.principalOf(row.id)).toMatchObject({ tenantId: id });
      setSystemTime(new Date(expiresAt));
      expect(tenants.apiKeys.authenticate(apiKey)).toEqual({ expiredAt: expiresAt });
      expect(tenants.apiKeys.principalOf(row.id)).toBeUndefined();
      // Whoever has no such key learns nothing of it.
      expect(tenants.apiKeys.authenticate(`${apiKey}x`)).toBeUndefined();
      tenants.apiKeys.revoke(root(), row.id);
      expect(tenants.apiKeys.authenticate(apiKey)).toBeUndefined();
    } finally {
      setSystemTime();
    }
  });

  test("a key that expires is not the one that administers the platform for good", () => {
    const first = tenants.apiKeys.valid(tenants.apiKeys.bootstrap(undefined)?.apiKey ?? "");
    const { id } = tenants.create("operations");
    const { row } = tenants.apiKeys.mint(root(), id, "", ["platform:admin"], 3_600);
    expect(() => tenants.apiKeys.revoke(root(), first?.keyId ?? "")).toThrow("last key");
    tenants.apiKeys.revoke(root(), row.id);
  });

  test("a tenant with the last key that administers the platform is neither deleted nor disabled", () => {
    const first = tenants.apiKeys.bootstrap(undefined);
    const [mine, other] = [tenants.create("operations").id, tenants.create("other").id];
    tenants.apiKeys.mint(root(), mine, "", ["platform:admin"]);
    tenants.update(mine, { status: "disabled" });
    tenants.update(mine, { status: "active" });
    tenants.apiKeys.revoke(root(), tenants.apiKeys.valid(first?.apiKey ?? "")?.keyId ?? "");
    for (const end of [() => tenants.delete(mine), () => tenants.update(mine, { status: "disabled" })]) {
      expect(end).toThrow("This tenant has the last key with the scope platform:admin.");
    }
    expect(tenants.update(mine, { name: "renamed", status: "active" }).status).toBe("active");
    tenants.delete(other);
    expect(() => tenants.delete(other)).toThrow("No such object.");
    const later = tenants.create("later").id;
    tenants.apiKeys.mint(root(), later, "", ["platform:admin"]);
    tenants.delete(mine);
    expect(() => tenants.delete(later)).toThrow("last key");
  });

  test("another tenant's key is no key; the last key that administers the platform stays", () => {
    const mine = tenants.create("a").id;
    const theirs = tenants.create("b").id;
    const { row } = tenants.apiKeys.mint(root(), theirs, "", ["inference"]);
    expect(() => tenants.apiKeys.revoke(principal(mine, "tenant:admin"), row.id)).toThrow("No such object.");
    expect(() => tenants.apiKeys.revoke(principal(undefined, "tenant:admin"), row.id)).toThrow("No such object.");
    const first = tenants.apiKeys.bootstrap(undefined);
    const firstId = tenants.apiKeys.valid(first?.apiKey ?? "")?.keyId ?? "";
    expect(() => tenants.apiKeys.revoke(root(), firstId)).toThrow("last key");
    const next = tenants.apiKeys.mint(root(), mine, "", ["platform:admin"]);
    tenants.apiKeys.revoke(root(), firstId);
    expect(() => tenants.apiKeys.revoke(root(), next.row.id)).toThrow("last key");
  });

  test("the first start makes one platform key with every scope, and only the first", () => {
    const made = tenants.apiKeys.bootstrap(undefined);
    expect(made).toMatchObject({ generated: true });
    expect(tenants.apiKeys.authenticate(made?.apiKey ?? "")).toMatchObject({
      tenantId: undefined,
      scopes: new Set(scopes),
    });
    expect(tenants.apiKeys.bootstrap("sk-given-by-the-operator")).toBeUndefined();
    expect(tenants.apiKeys.authenticate("sk-given-by-the-operator")).toBeUndefined();
  });

  test("a key given by the operator is taken as it is, unless it is too weak", () => {
    expect(() => tenants.apiKeys.bootstrap("short")).toThrow("SPANGATE_ADMIN_KEY");
    expect(() => tenants.apiKeys.bootstrap("has a space in the middle")).toThrow("SPANGATE_ADMIN_KEY");
    expect(tenants.apiKeys.bootstrap("sk-given-by-the-operator")).toEqual({
      apiKey: "sk-given-by-the-operator",
      generated: false,
    });
    expect(tenants.apiKeys.valid("sk-given-by-the-operator")?.scopes.has("platform:admin")).toBe(true);
  });
});

describe("salts", () => {
  test("differ by owner, kind, epoch, subdivision and server; a rotation changes the tenant's", () => {
    const { id } = tenants.create("a");
    const other = tenants.create("b").id;
    const salts = new Salts(secret);
    const all = [
      tenants.cacheSalt(id),
      tenants.cacheSalt(other),
      tenants.cacheSalt(id, ""),
      tenants.cacheSalt(id, "x"),
      tenants.cacheSalt(other, "x"),
      tenants.corpusSalt(id, 0),
      salts.ofTenant(id, 1),
      new Salts(new ServerSecret(new Uint8Array(32).fill(9))).ofTenant(id, 0),
    ];
    expect(new Set(all).size).toBe(all.length);
    expect(tenants.cacheSalt(id)).toBe(tenants.cacheSalt(id));
    expect(tenants.rotateSalt(id)).toBe(1);
    expect(tenants.cacheSalt(id)).toBe(salts.ofTenant(id, 1));
    expect(() => tenants.rotateSalt("tenant_unknown")).toThrow("No such object.");
  });

  test("no two lists of parts encode alike", () => {
    const salts = new Salts(secret);
    const seen = new Map<string, string>();
    const part = fc.oneof(fc.stringMatching(/^[01]{0,3}$/), fc.string({ maxLength: 6 }));
    fc.assert(
      fc.property(
        part,
        fc.constantFrom(0, 1, 10, 11, 101),
        fc.option(part, { nil: undefined }),
        (tenantId, epoch, subdivision) => {
          const own = salts.ofTenant(`tenant_${tenantId}`, epoch);
          const salt = subdivision === undefined ? own : salts.within(own, subdivision);
          const parts = JSON.stringify([tenantId, epoch, subdivision ?? null]);
          // Lone surrogates become one character in UTF-8, so they are told apart by nobody.
          if (!tenantId.isWellFormed() || subdivision?.isWellFormed() === false) return;
          expect(seen.get(salt) ?? parts).toBe(parts);
          seen.set(salt, parts);
        },
      ),
      { numRuns: 2_000 },
    );
  });
});

describe("the server's secret", () => {
  let dir = "";
  beforeEach(() => {
    dir = mkdtempSync(join(tmpdir(), "spangate-secret-"));
  });
  afterEach(() => rmSync(dir, { recursive: true, force: true }));

  test("is made although a start before was killed while it made one", () => {
    writeFileSync(join(dir, `secret.${process.pid}.tmp`), "half");
    loadServerSecret(dir, db);
    expect(statSync(join(dir, "secret")).size).toBe(32);
  });

  test("is made once, readable by its owner only, and the same after a restart", () => {
    const first = loadServerSecret(dir, db);
    const path = join(dir, "secret");
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(statSync(path).size).toBe(32);
    expect(loadServerSecret(dir, db).derive("x")).toEqual(first.derive("x"));
    expect(first.derive("x")).not.toEqual(first.derive("y"));
    const bytes = readFileSync(path);
    const dump = db.client.serialize().toString("latin1");
    expect(dump).not.toContain(bytes.toString("latin1"));
    expect(dump).not.toContain(bytes.toString("hex"));
    expect(Bun.inspect(first)).not.toContain(String(bytes[0]));
  });

  test("missing, exchanged, damaged, or readable by others: the start is refused", () => {
    loadServerSecret(dir, db);
    const path = join(dir, "secret");
    const bytes = readFileSync(path);
    chmodSync(path, 0o644);
    expect(() => loadServerSecret(dir, db)).toThrow("0600");
    chmodSync(path, 0o600);
    writeFileSync(path, bytes.subarray(1));
    expect(() => loadServerSecret(dir, db)).toThrow("damaged");
    writeFileSync(path, Buffer.alloc(32, 5));
    expect(() => loadServerSecret(dir, db)).toThrow("not the secret");
    rmSync(path);
    expect(() => loadServerSecret(dir, db)).toThrow("missing");
    writeFileSync(path, bytes, { mode: 0o600 });
    loadServerSecret(dir, db);
  });
});
