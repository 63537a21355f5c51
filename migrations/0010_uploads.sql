-- Files that come in parts. The parts' bytes lie in the data folder until the upload has ended.
create table uploads (
  seq integer primary key autoincrement,
  id text not null unique,
  tenant_id text not null references tenants (id),
  filename text not null,
  purpose text not null,
  media_type text not null,
  -- What all its parts are to have together.
  byte_count integer not null,
  status text not null check (status in ('pending', 'completed', 'cancelled', 'expired')),
  file_id text,
  created_at integer not null,
  expires_at integer not null
) strict;
create index uploads_by_tenant on uploads (tenant_id, seq);
create index uploads_open on uploads (expires_at) where status = 'pending';

-- The same bytes are the same part, so that one whose answer was lost may be sent again.
create table upload_parts (
  seq integer primary key autoincrement,
  id text not null unique,
  upload_seq integer not null references uploads (seq) on delete cascade,
  sha256 text not null,
  byte_count integer not null,
  created_at integer not null,
  unique (upload_seq, sha256)
) strict;
