-- Web sites and buckets that the server reads into vector stores. `label` is what the store calls the source
-- (the attribute synced_from of its files); `sealed_key` is an S3 secret key that only this server's secret opens.
create table sources (
  seq integer primary key autoincrement,
  id text not null unique,
  tenant_id text not null,
  corpus_id text not null,
  url text not null,
  label text not null,
  options text not null,
  sealed_key blob,
  interval_minutes integer,
  -- In Unix milliseconds; null: it runs when it is asked to.
  next_run_at integer,
  last_run text,
  created_at integer not null
);
create unique index sources_by_label on sources (corpus_id, label);
create index sources_by_tenant on sources (tenant_id);
create index sources_due on sources (next_run_at) where next_run_at is not null;
