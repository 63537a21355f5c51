-- Lines of a file that are run as requests. The time of a state is set when it is reached.
create table batches (
  seq integer primary key autoincrement,
  id text not null unique,
  tenant_id text not null references tenants (id),
  -- Whose limits the lines count against.
  key_id text not null,
  endpoint text not null,
  input_file_id text not null,
  metadata text check (json_valid(metadata)),
  status text not null check (
    status in
      ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled')
  ),
  errors text check (json_valid(errors)),
  output_file_id text,
  error_file_id text,
  total integer not null default 0,
  completed integer not null default 0,
  failed integer not null default 0,
  output_bytes integer not null default 0,
  input_tokens integer not null default 0,
  cached_tokens integer not null default 0,
  output_tokens integer not null default 0,
  created_at integer not null,
  expires_at integer not null,
  in_progress_at integer,
  finalizing_at integer,
  completed_at integer,
  failed_at integer,
  expired_at integer,
  cancelling_at integer,
  cancelled_at integer
) strict;
create index batches_by_tenant on batches (tenant_id, seq);
create index batches_open on batches (seq) where status in ('validating', 'in_progress', 'finalizing', 'cancelling');

-- A line's result until it stands in a file: once, however often the line was run. line: counted from 1.
create table batch_results (
  batch_seq integer not null references batches (seq) on delete cascade,
  line integer not null,
  is_error integer not null,
  body text not null,
  primary key (batch_seq, line)
) strict, without rowid;
