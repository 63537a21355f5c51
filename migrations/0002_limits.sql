-- What a tenant or a key may take at most; null: no limit of its own. No row: none at all.
create table tenant_limits (
  tenant_id text primary key references tenants (id) on delete cascade,
  requests_per_minute integer check (requests_per_minute > 0),
  tokens_per_minute integer check (tokens_per_minute > 0),
  concurrency integer check (concurrency > 0)
) strict, without rowid;

create table api_key_limits (
  key_id text primary key references api_keys (id) on delete cascade,
  requests_per_minute integer check (requests_per_minute > 0),
  tokens_per_minute integer check (tokens_per_minute > 0),
  concurrency integer check (concurrency > 0)
) strict, without rowid;
