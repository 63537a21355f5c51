-- Times are Unix milliseconds. JSON columns hold what the API took, already checked.
-- seq orders lists and cursors; autoincrement, so that a number is never used twice.

create table meta (
  name text primary key,
  value text not null
) strict, without rowid;

create table tenants (
  seq integer primary key autoincrement,
  id text not null unique,
  name text not null,
  status text not null check (status in ('active', 'disabled', 'deleting')),
  salt_epoch integer not null default 0,
  created_at integer not null
) strict;

-- tenant_id null: a platform key, which belongs to no tenant.
create table api_keys (
  seq integer primary key autoincrement,
  id text not null unique,
  tenant_id text references tenants (id),
  name text not null,
  hash blob not null unique,
  prefix text not null,
  scopes text not null check (json_valid(scopes)),
  created_at integer not null,
  revoked_at integer
) strict;
create index api_keys_by_tenant on api_keys (tenant_id, seq);

-- A corpus is the API's vector store. deleted_at: gone for everybody, rows still being swept.
create table corpora (
  seq integer primary key autoincrement,
  id text not null unique,
  tenant_id text not null references tenants (id),
  name text not null,
  description text,
  metadata text not null check (json_valid(metadata)),
  salt_epoch integer not null default 0,
  created_at integer not null,
  last_active_at integer not null,
  deleted_at integer
) strict;
create index corpora_by_tenant on corpora (tenant_id, seq);

create table corpus_grants (
  corpus_id text not null references corpora (id) on delete cascade,
  tenant_id text not null references tenants (id) on delete cascade,
  created_at integer not null,
  primary key (corpus_id, tenant_id)
) strict, without rowid;

-- The bytes are in the content folder, in a file named by id; a row exists only once they are durable.
create table files (
  seq integer primary key autoincrement,
  id text not null unique,
  tenant_id text not null references tenants (id),
  filename text not null,
  purpose text not null,
  media_type text not null,
  byte_count integer not null,
  sha256 text not null,
  created_at integer not null,
  deleted_at integer
) strict;
create index files_by_tenant on files (tenant_id, seq);
create unique index files_by_content on files (tenant_id, sha256, filename, purpose) where deleted_at is null;

-- A file attached to a corpus. Its fragments are visible if and only if status is 'completed'.
create table corpus_files (
  seq integer primary key autoincrement,
  corpus_id text not null references corpora (id),
  file_id text not null references files (id),
  tenant_id text not null references tenants (id),
  status text not null check (status in ('in_progress', 'completed', 'failed', 'cancelled', 'deleting')),
  -- Rises when a failed or cancelled file is attached again: work for an earlier attempt comes to nothing.
  attempt integer not null default 0,
  error_code text,
  error_message text,
  attributes text not null check (json_valid(attributes)),
  max_chunk_tokens integer not null,
  overlap_tokens integer not null,
  usage_bytes integer not null default 0,
  created_at integer not null
) strict;
create unique index corpus_files_by_file on corpus_files (corpus_id, file_id) where status <> 'deleting';
create index corpus_files_by_corpus on corpus_files (corpus_id, seq);
create index corpus_files_of_file on corpus_files (file_id);
create index corpus_files_pending on corpus_files (tenant_id, seq) where status = 'in_progress';
create index corpus_files_deleting on corpus_files (seq) where status = 'deleting';

create table file_batches (
  seq integer primary key autoincrement,
  id text not null unique,
  corpus_id text not null references corpora (id) on delete cascade,
  created_at integer not null
) strict;
create index file_batches_by_corpus on file_batches (corpus_id);

create table file_batch_members (
  batch_id text not null references file_batches (id) on delete cascade,
  corpus_file_seq integer not null references corpus_files (seq) on delete cascade,
  primary key (batch_id, corpus_file_seq)
) strict, without rowid;
create index file_batch_members_by_file on file_batch_members (corpus_file_seq);

-- first_char, end_char: half-open range of UTF-16 units of the file's text. token_count: of the text alone.
-- prepared_*: what the last prepare job reported; true only while span_key is still the fragment's own.
create table fragments (
  seq integer primary key autoincrement,
  id text not null unique,
  corpus_file_seq integer not null references corpus_files (seq),
  ordinal integer not null,
  text text not null,
  first_char integer not null,
  end_char integer not null,
  token_count integer not null,
  prepared_span_key text,
  prepared_worker integer,
  prepared_at integer
) strict;
create unique index fragments_by_file on fragments (corpus_file_seq, ordinal);

create table jobs (
  seq integer primary key autoincrement,
  id text not null unique,
  tenant_id text not null references tenants (id),
  corpus_id text not null references corpora (id) on delete cascade,
  status text not null check (status in ('queued', 'running', 'completed', 'failed', 'cancelled')),
  done integer not null default 0,
  total integer not null default 0,
  error_code text,
  error_message text,
  created_at integer not null,
  finished_at integer
) strict;
create index jobs_by_corpus on jobs (corpus_id, seq);
create index jobs_open on jobs (seq) where status in ('queued', 'running');
