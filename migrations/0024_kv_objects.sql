-- KV in files. A row is the commit of a file; without its row a file cannot be opened, since the key is here alone.
-- A scope is a corpus at one epoch of its salt: its key, sealed by a key of the server's secret, seals its objects' keys.
create table kv_scopes (
  seq integer primary key autoincrement,
  -- An HMAC of the salt: the salt itself stands nowhere.
  name text not null unique,
  tenant_id text not null,
  corpus_id text not null,
  salt_epoch integer not null,
  sealed_key blob not null
) strict;
create index kv_scopes_of_tenant on kv_scopes (tenant_id);

create table kv_objects (
  seq integer primary key autoincrement,
  id text not null unique,
  scope_seq integer not null references kv_scopes (seq) on delete cascade,
  sealed_key blob not null,
  model_digest text not null,
  -- The version of the file, the arithmetic and the layout of a block.
  format text not null,
  root_key text not null,
  previous_key text not null,
  last_key text not null unique,
  -- The last key of the run that the object is a part of: the parts are used and dropped together.
  span_key text not null,
  position integer not null,
  token_count integer not null,
  bytes integer not null,
  used_at integer not null
) strict;
create index kv_objects_of_scope on kv_objects (scope_seq);
create index kv_objects_by_use on kv_objects (used_at);
create index kv_objects_of_span on kv_objects (span_key);
