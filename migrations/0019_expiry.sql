-- When a file ends by itself, in Unix milliseconds, and how long the file of an upload will last, in seconds. Null: it stays.
alter table files add column expires_at integer;
create index files_expiring on files (expires_at) where expires_at is not null and deleted_at is null;
-- The same content is the same file; each file that ends is one of its own.
drop index files_by_content;
create unique index files_by_content
  on files (tenant_id, sha256, filename, purpose, case when expires_at is null then '' else id end)
  where deleted_at is null;
alter table uploads add column file_seconds integer;
-- Days after its last use that a vector store ends; null: it stays. One that has ended is deleted but for this row, which
-- tells of it until somebody deletes that too.
alter table corpora add column expires_after_days integer;
alter table corpora add column expired integer not null default 0;
create index corpora_expiring on corpora (last_active_at + expires_after_days * 86400000)
  where expires_after_days is not null and deleted_at is null;
