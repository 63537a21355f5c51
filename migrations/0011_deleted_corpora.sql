-- A corpus is deleted by its own row; its files' rows are found by it.
create index corpora_deleted on corpora (seq) where deleted_at is not null;

-- What a corpus has of each status, counted and summed without a look at the rows.
create index corpus_files_by_status on corpus_files (corpus_id, status, seq, usage_bytes);
