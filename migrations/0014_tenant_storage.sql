-- Bytes that a tenant may have stored; null: what the server gives each.
alter table tenant_limits add column storage_bytes integer check (storage_bytes > 0);

-- Bytes of a tenant's files that are not deleted, and of the texts in its corpora until they are swept: kept by triggers,
-- so that they are what the rows are, whoever changes them.
create table tenant_storage (
  tenant_id text primary key references tenants (id) on delete cascade,
  file_bytes integer not null default 0,
  text_bytes integer not null default 0
) strict, without rowid;

insert into tenant_storage (tenant_id, file_bytes, text_bytes)
select id,
  (select coalesce(sum(byte_count), 0) from files where tenant_id = tenants.id and deleted_at is null),
  (select coalesce(sum(usage_bytes), 0) from corpus_files where tenant_id = tenants.id)
from tenants where status <> 'deleting';

create trigger tenant_added after insert on tenants begin
  insert into tenant_storage (tenant_id) values (new.id);
end;

-- Nobody asks about a tenant that is gone, so its many rows are not counted off one by one.
create trigger tenant_gone after update of status on tenants when new.status = 'deleting' begin
  delete from tenant_storage where tenant_id = new.id;
end;

create trigger file_added after insert on files when new.deleted_at is null begin
  update tenant_storage set file_bytes = file_bytes + new.byte_count where tenant_id = new.tenant_id;
end;

create trigger file_deleted after update of deleted_at on files
when old.deleted_at is null and new.deleted_at is not null begin
  update tenant_storage set file_bytes = file_bytes - old.byte_count where tenant_id = old.tenant_id;
end;

create trigger file_removed after delete on files when old.deleted_at is null begin
  update tenant_storage set file_bytes = file_bytes - old.byte_count where tenant_id = old.tenant_id;
end;

create trigger corpus_file_stored after update of usage_bytes on corpus_files when new.usage_bytes <> old.usage_bytes begin
  update tenant_storage set text_bytes = text_bytes + new.usage_bytes - old.usage_bytes where tenant_id = new.tenant_id;
end;

create trigger corpus_file_removed after delete on corpus_files when old.usage_bytes <> 0 begin
  update tenant_storage set text_bytes = text_bytes - old.usage_bytes where tenant_id = old.tenant_id;
end;
