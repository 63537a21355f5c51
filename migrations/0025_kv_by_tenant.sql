-- Whose KV an object holds, so that a tenant's own files that were used longest ago make room for its new ones; how many
-- blocks it has; and whether it is pinned, so that it is never dropped to make room.
alter table kv_objects add column tenant_id text not null default '';
alter table kv_objects add column block_count integer not null default 0;
alter table kv_objects add column pinned integer not null default 0;
update kv_objects set block_count = (token_count + 15) / 16,
  tenant_id = (select tenant_id from kv_scopes where seq = kv_objects.scope_seq);
drop index kv_objects_by_use;
create index kv_objects_by_use on kv_objects (used_at) where pinned = 0;
create index kv_objects_of_tenant on kv_objects (tenant_id, used_at) where pinned = 0;
create index kv_objects_pinned on kv_objects (tenant_id, bytes) where pinned = 1;
-- Bytes of KV that the tenant may keep in files and in a bucket; null: no limit of its own.
alter table tenant_limits add column kv_disk_bytes integer;
alter table tenant_limits add column kv_s3_bytes integer;
