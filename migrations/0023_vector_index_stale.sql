-- Whether fragments may have been removed while the extension was missing, so that their entries are still in the index.
alter table vector_indexes add column is_stale integer not null default 1;
