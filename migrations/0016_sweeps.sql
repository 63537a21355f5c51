-- What a tenant deleted, so that the sweep finds one tenant's however much others deleted.
create index corpus_files_deleting_by_tenant on corpus_files (tenant_id, seq) where status = 'deleting';
drop index corpus_files_deleting;
create index corpora_deleted_by_tenant on corpora (tenant_id, seq) where deleted_at is not null;
create index files_deleted_by_tenant on files (tenant_id, seq) where deleted_at is not null;
