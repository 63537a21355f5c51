-- Who changed what, and when. Ids only, no names and no text; rows outlive what they name.
create table audit_events (
  seq integer primary key autoincrement,
  id text not null unique,
  at integer not null,
  request_id text not null,
  key_id text not null,
  actor_tenant_id text,
  -- Whose object it was, where the request says it.
  tenant_id text,
  action text not null,
  object_ids text not null check (json_valid(object_ids))
) strict;
create index audit_events_by_tenant on audit_events (tenant_id, seq);
create index audit_events_by_actor on audit_events (actor_tenant_id, seq);

-- Tokens of runs that ended, by day (UTC) and tenant; kept when the tenant is gone.
create table usage_days (
  day text not null check (day glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'),
  tenant_id text not null,
  requests integer not null,
  prompt_tokens integer not null,
  cached_tokens integer not null,
  cache_write_tokens integer not null,
  completion_tokens integer not null,
  primary key (day, tenant_id)
) strict, without rowid;
