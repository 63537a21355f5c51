-- Names of a fragment's text and of its beginning, so that the same text is found again when a file's new version is
-- ingested: its vector is copied, and the sweep of the old version spares its KV. null: stored before this migration.
alter table fragments add column text_key blob;
alter table fragments add column head_key blob;
create index fragments_by_text on fragments (text_key, corpus_file_seq);
create index fragments_by_head on fragments (head_key, corpus_file_seq);
