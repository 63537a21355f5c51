-- KV in a bucket as well. An object is in the folder, in the bucket, or in both.
alter table kv_objects add column on_disk integer not null default 1;
-- 0: not there; 1: perhaps, its upload has begun; 2: there.
alter table kv_objects add column in_bucket integer not null default 0;
drop index kv_objects_by_use;
drop index kv_objects_of_tenant;
create index kv_objects_by_use on kv_objects (used_at) where pinned = 0 and on_disk = 1;
create index kv_objects_of_tenant on kv_objects (tenant_id, used_at) where pinned = 0 and on_disk = 1;
create index kv_objects_to_upload on kv_objects (used_at) where on_disk = 1 and in_bucket < 2;
create index kv_objects_in_bucket on kv_objects (used_at) where in_bucket = 2 and pinned = 0;
create index kv_objects_of_tenant_in_bucket on kv_objects (tenant_id, used_at, bytes) where in_bucket > 0;
create index kv_objects_nowhere on kv_objects (seq) where on_disk = 0 and in_bucket < 2;

-- One row: what this server is called in buckets, and the bucket that `in_bucket` speaks of.
create table kv_bucket (
  id integer primary key check (id = 1),
  server_id text not null,
  address text not null
) strict;

-- Objects that are to be deleted from the bucket, which may not be reached for now. Their keys are gone already.
create table kv_bucket_removals (
  seq integer primary key autoincrement,
  id text not null unique
) strict;

-- However a row goes, its object in the bucket is not forgotten.
create trigger kv_objects_leave_bucket after delete on kv_objects when old.in_bucket > 0 begin
  insert or ignore into kv_bucket_removals (id) values (old.id);
end;
